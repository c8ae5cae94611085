/**
 * The last 15 minutes of a model as this page knows them: what the server kept, and what came since.
 *
 * It survives a restart of the dispatcher, whose own memory does not. One point stands for `every`
 * seconds: of some columns the worst, of the others the mean, as in roma/ui/dashboard/history.py.
 */

export const SPAN = 900;

/** Seconds that a time axis shows at least, of a deployment that has only just begun. */
const LEAST = 180;

/** Seconds without a point after which a line breaks off: nobody looked. */
export const GAP = 6;

const WORST = ['response_time', 'waiting', 'oldest_age', 'throttled'];
const MEAN = [
  'arrivals', 'on_gpu', 'ended', 'broken', 'demanded', 'allocated', 'applied', 'used',
];
const COLUMNS = [...WORST, ...MEAN];

/** What a row of the view calls otherwise. */
const NAMES = { on_gpu: 'gpu_share' };

/** @typedef {Record<string, number|null> & {at: number}} Point */

export class Series {
  /** @param {number} every seconds per point */
  constructor(every) {
    this.every = every;
    /** @type {Point[]} oldest first */
    this.points = [];
    /** @type {Record<string, number>} how many samples the mean of the last point is of */
    this.weights = {};
  }

  /** Add what a view says. @param {number} at @param {Record<string, any>} row */
  add(at, row) {
    const last = this.points.at(-1);
    // Somebody set the server's clock back: what it called later is no longer true.
    if (last && at < last.at - GAP) this.points = this.points.filter((point) => point.at < at);
    else if (last && at <= last.at) return;
    this.#append(this.points.at(-1), at, row);
  }

  #append(last, at, row) {
    if (last && this.#place(at) === this.#place(last.at)) this.#merge(last, at, row);
    else this.#push(at, row);
    this.#trim();
  }

  /**
   * Join what a server remembers; where both know something, the server is right.
   * @param {Record<string, (number|null)[]>} columns
   */
  join(columns) {
    const found = new Map(this.points.map((point) => [this.#place(point.at), point]));
    columns.at.forEach((at, i) => {
      const point = { at };
      for (const column of COLUMNS) point[column] = columns[column]?.[i] ?? null;
      found.set(this.#place(at), point);
    });
    this.points = [...found.values()].sort((a, b) => a.at - b.at);
    this.weights = Object.fromEntries(MEAN.map((column) => [column, 1]));
    this.#trim();
  }

  #place(at) {
    return Math.floor(at / this.every);
  }

  #push(at, row) {
    const point = { at };
    for (const column of COLUMNS) point[column] = row[NAMES[column] ?? column] ?? null;
    for (const column of MEAN) this.weights[column] = point[column] == null ? 0 : 1;
    this.points.push(point);
  }

  #merge(point, at, row) {
    point.at = at;
    for (const column of WORST) {
      const value = row[column];
      if (value != null) point[column] = Math.max(point[column] ?? value, value);
    }
    for (const column of MEAN) {
      const value = row[NAMES[column] ?? column];
      if (value == null) continue;
      const n = (this.weights[column] += 1);
      point[column] = ((point[column] ?? 0) * (n - 1) + value) / n;
    }
  }

  /** @returns {number} seconds that a time axis should show: what there is, in whole minutes */
  get span() {
    const { points } = this;
    const known = points.length ? points.at(-1).at - points[0].at : 0;
    return Math.min(SPAN, Math.max(LEAST, 60 * Math.ceil(known / 60)));
  }

  #trim() {
    const since = (this.points.at(-1)?.at ?? 0) - SPAN;
    let gone = 0;
    while (this.points[gone]?.at < since) gone += 1;
    if (gone) this.points.splice(0, gone);
  }
}

/** The series of all models. */
export class Memory {
  constructor() {
    this.every = 5;
    /** @type {Map<string, Series>} */
    this.models = new Map();
  }

  /** @param {{every: number, models: Record<string, any>}} history */
  join(history) {
    if (history.every !== this.every) this.#recast(history.every);
    for (const [model, columns] of Object.entries(history.models)) this.of(model).join(columns);
  }

  /** @param {{at: number, models: any[]}} view */
  add(view) {
    const served = new Set();
    for (const row of view.models) {
      served.add(row.model);
      this.of(row.model).add(view.at, row);
    }
    for (const model of this.models.keys()) if (!served.has(model)) this.models.delete(model);
  }

  /** @param {string} model @returns {Series} */
  of(model) {
    let series = this.models.get(model);
    if (!series) this.models.set(model, (series = new Series(this.every)));
    return series;
  }

  /** @returns {number} seconds that the time axes of all models show */
  get span() {
    let most = LEAST;
    for (const series of this.models.values()) most = Math.max(most, series.span);
    return most;
  }

  /** With many models the server sends coarser points; what is known becomes as coarse. */
  #recast(every) {
    this.every = every;
    for (const [model, old] of this.models) {
      const series = new Series(every);
      for (const p of old.points) series.add(p.at, { ...p, gpu_share: p.on_gpu });
      this.models.set(model, series);
    }
  }
}
