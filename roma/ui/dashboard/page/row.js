/** One model in the overview. */

import { el, put, say } from './dom.js';
import { cores, covered, duration, percent, rate, throttled, whole } from './format.js';
import { Bullet, Cores, Spark } from './glyphs.js';
import { Mark, shown } from './states.js';

/** @param {string} model @returns {string} the address of its decisions */
export function address(model) {
  return `#model=${encodeURIComponent(model)}`;
}

/** Four numbers that are told apart everywhere: asked, granted, confirmed, read back as used. */
export const STAGES = ['demanded', 'allocated', 'applied', 'used'];

/** A value and a smaller word below it. */
class Cell {
  constructor(name, label) {
    this.value = el('span.value');
    this.more = el('span.more');
    // On narrow screens rows are cards and the table's header is gone.
    this.element = el(`td.${name}`, { role: 'cell' }, el('span.label', { 'aria-hidden': 'true' }, label), this.value, this.more);
  }

  update(value, more = '', state = '') {
    say(this.value, value);
    say(this.more, more);
    put(this.element, 'data-state', state || null);
  }
}

export class Row {
  /** @param {string} model */
  constructor(model) {
    this.model = model;
    this.mark = new Mark();
    this.link = el('a.name', { href: address(model), title: model }, model);
    this.why = el('span.why');
    this.bullet = new Bullet();
    this.spark = new Spark();
    this.highest = el('span.unseen');
    this.time = new Cell('time', '');
    this.time.element.append(this.bullet.element);
    this.rate = new Cell('rate', 'req/s');
    this.late = new Cell('late', 'late, 1 min');
    this.queue = new Cell('queue', 'queue');
    this.gpu = new Cell('gpu', 'on GPU');
    this.throttled = new Cell('throttled', 'throttled');
    this.bar = new Cores();
    this.stages = Object.fromEntries(STAGES.map((stage) => [stage, el(`span.${stage}`)]));
    const numbers = STAGES.map((stage) => (
      el('span.stage', {}, el('span.label', {}, stage), this.stages[stage])
    ));
    this.element = el(
      'tr', { role: 'row' },
      el('td.mark', { role: 'cell' }, this.mark.element),
      el('th.model', { role: 'rowheader', scope: 'row' }, this.link, this.why),
      this.time.element,
      el('td.history', { role: 'cell' }, this.spark.element, this.highest),
      this.rate.element,
      this.late.element,
      this.queue.element,
      this.gpu.element,
      el('td.cores', { role: 'cell' }, el('span.stages', {}, ...numbers), this.bar.element),
      this.throttled.element,
    );
  }

  /**
   * @param {any} row what the view says
   * @param {import('./series.js').Series} series
   * @param {{now: number, span: number, cores: number}} scale
   * @param {boolean} drawn whether it is the turn of its last minutes to be drawn
   */
  update(row, series, scale, drawn) {
    const news = this.state !== shown(row);
    this.state = shown(row);
    put(this.element, 'data-state', this.state);
    this.mark.update(this.state);
    say(this.why, row.why);
    put(this.why, 'title', row.why);
    this.time.update(responseTime(row), `of ${duration(row.sla)} ${covered(row)}`, row.response_time > row.sla ? 'late' : '');
    this.bullet.update(row);
    if (drawn || news) say(this.highest, this.spark.update(row, series, scale));
    this.rate.update(rate(row.arrivals));
    this.late.update(percent(row.late_share), '', row.late_share > (row.budget ?? 0.02) ? 'late' : '');
    const old = row.oldest_age > row.set_point;
    this.queue.update(
      whole(row.waiting),
      old ? `oldest ${duration(row.oldest_age)}` : `+ ${row.in_flight} running`,
      row.oldest_age > row.sla ? 'late' : '',
    );
    this.gpu.update(...gpu(row));
    for (const stage of STAGES) say(this.stages[stage], cores(row[stage]));
    put(this.element, 'data-short', row.executables.some((e) => e.limit === 'worker_short'));
    this.bar.update(row, scale.cores);
    this.throttled.update(throttled(row));
  }
}

/** @param {{executables: {device: string}[]}} row @returns {boolean} whether a GPU can run the model */
export function onGpu(row) {
  return row.executables.some((e) => e.device === 'gpu');
}

/** The response time, or the age of the oldest request: the first time will be more than that. */
export function responseTime(row) {
  const waits = row.response_time == null && (row.waiting > 0 || row.in_flight > 0);
  return waits ? `> ${duration(row.oldest_age)}` : duration(row.response_time);
}

function gpu(row) {
  if (onGpu(row)) return [percent(row.gpu_share)];
  return ['–', row.executables.length ? 'CPU only' : ''];
}
