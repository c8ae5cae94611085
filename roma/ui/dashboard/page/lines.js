/** Points become the `d` of an SVG path. What is unknown, or was not looked at, is a gap. */

import { GAP } from './series.js';

const round = (x) => Math.round(x * 10) / 10;

/**
 * @typedef {{
 *   x: (at: number) => number,
 *   y: (value: number) => number,
 *   value: (point: any) => number|null|undefined,
 *   gap?: number,
 * }} Scale `gap`: seconds after which the line breaks off
 */

/** @returns {[number, number][][]} runs of screen points without a gap */
function runs(points, { x, y, value, gap = GAP }) {
  const found = [];
  let run = null;
  let before = -Infinity;
  for (const point of points) {
    const v = value(point);
    if (v == null) {
      run = null;
      continue;
    }
    if (!run || point.at - before > gap) found.push((run = []));
    run.push([round(x(point.at)), round(y(v))]);
    before = point.at;
  }
  return found;
}

/** @param {any[]} points @param {Scale} scale */
export function line(points, scale) {
  let d = '';
  for (const run of runs(points, scale)) {
    d += `M${run[0][0]} ${run[0][1]}`;
    // A lone point has no length; a short dash can be seen.
    if (run.length === 1) d += 'h1';
    for (let i = 1; i < run.length; i += 1) d += `L${run[i][0]} ${run[i][1]}`;
  }
  return d;
}

/** What holds until the next second: cores are set, they do not drift. */
export function steps(points, scale) {
  let d = '';
  for (const run of runs(points, scale)) {
    d += `M${run[0][0]} ${run[0][1]}`;
    if (run.length === 1) d += 'h1';
    for (let i = 1; i < run.length; i += 1) d += `H${run[i][0]}V${run[i][1]}`;
  }
  return d;
}

/** The surface between the line and `base`, a height on the screen. */
export function area(points, scale, base) {
  let d = '';
  for (const run of runs(points, scale)) {
    d += `M${run[0][0]} ${base}`;
    for (const [x, y] of run) d += `L${x} ${y}`;
    d += `L${run.at(-1)[0]} ${base}Z`;
  }
  return d;
}

/** Short ticks from `base` upwards where `holds`. */
export function ticks(points, x, holds, base, length) {
  let d = '';
  for (const point of points) if (holds(point)) d += `M${round(x(point.at))} ${base}v-${length}`;
  return d;
}

/** @param {number} most @returns {number} the next round number: 1, 2, 2.5, 5 × 10ⁿ */
export function roundUp(most) {
  if (!(most > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 2.5, 5, 10].find((step) => step * power >= most * 0.999) * power;
}
