/** Numbers for people: few digits, always a unit, "–" for what is not known. */

export const NONE = '–';

/** @typedef {number|null|undefined} Maybe */

/** @param {Maybe} seconds */
export function duration(seconds) {
  if (seconds == null) return NONE;
  const ms = seconds * 1000;
  if (ms < 0.05) return '0 ms';
  if (ms < 9.95) return `${ms.toFixed(1)} ms`;
  if (ms < 999.5) return `${ms.toFixed(0)} ms`;
  if (seconds < 9.995) return `${seconds.toFixed(2)} s`;
  return seconds < 99.95 ? `${seconds.toFixed(1)} s` : `${seconds.toFixed(0)} s`;
}

/** Times that people wait: whole seconds, then minutes. @param {number} seconds */
export function wait(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 120) return `${s} s`;
  return s < 7200 ? `${Math.floor(s / 60)} min` : `${Math.floor(s / 3600)} h`;
}

/** @param {Maybe} perSecond */
export function rate(perSecond) {
  if (perSecond == null) return NONE;
  if (perSecond < 0.05) return '0';
  return perSecond < 9.95 ? perSecond.toFixed(1) : whole(perSecond);
}

/** @param {Maybe} n */
export function whole(n) {
  return n == null ? NONE : Math.round(n).toLocaleString('en');
}

/** @param {Maybe} n @param {number} [digits] */
export function cores(n, digits = 2) {
  return n == null ? NONE : n.toFixed(digits);
}

/** Throttled share, in words where a backend does not report it. @param {{applied?: Maybe, throttled?: Maybe}} row */
export function throttled(row) {
  if (row.applied == null) return NONE;
  return row.throttled == null ? 'unknown' : percent(row.throttled);
}

/** @param {Maybe} share */
export function percent(share) {
  if (share == null) return NONE;
  const p = share * 100;
  if (p === 0) return '0 %';
  if (p < 0.1) return '< 0.1 %';
  // 99.96 % are not all.
  if (p < 9.95 || (p > 99 && p < 100)) return `${Math.min(p, 99.9).toFixed(1)} %`;
  return `${p.toFixed(0)} %`;
}

/** Return how many requests a promise covers.
 * @param {{budget: Maybe, statistic: string}} row */
export function covered(row) {
  if (row.budget == null) return row.statistic;
  return `for ${Number((100 * (1 - row.budget)).toPrecision(7))} %`;
}

const CLOCK = new Intl.DateTimeFormat('en-GB', { timeStyle: 'medium' });
const MINUTES = new Intl.DateTimeFormat('en-GB', { timeStyle: 'short' });

/** @param {Maybe} at seconds since the epoch */
export function clock(at) {
  return at ? CLOCK.format(at * 1000) : NONE;
}

/** @param {number} at seconds since the epoch */
export function minutes(at) {
  return MINUTES.format(at * 1000);
}

/** @param {number} n @param {string} one @param {string} [many] */
export function count(n, one, many = `${one}s`) {
  return `${n} ${n === 1 ? one : many}`;
}

/** Any number of a decision: three digits that matter. @param {unknown} value */
export function plain(value) {
  if (typeof value === 'number') {
    return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)));
  }
  return value == null ? NONE : String(value);
}

/** @param {string} name of a field @returns {string} the same for people */
export function words(name) {
  return name.replaceAll('_', ' ');
}
