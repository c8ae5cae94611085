/**
 * One large chart: lines over the last 15 minutes with units and clock times, and a crosshair.
 *
 * The crosshair is a slider: arrow keys move it a sample, Page keys a minute, and what stands there
 * is read out. A chart's text is its legend; the drawing itself is hidden from screen readers.
 */

import { arrange, el, put, say, svg } from './dom.js';
import { clock, minutes } from './format.js';
import { area, line, roundUp, steps } from './lines.js';
import { SPAN } from './series.js';

const HEIGHT = 148;
const LEFT = 46;
const RIGHT = 10;
const TOP = 8;
const BOTTOM = 20;

/** Pixels between two levels from which on both labels have room at the same end. */
const LABEL = 14;

const DRAWN = { line, step: steps, area };

/** Ids of clip paths are the document's. */
let charts = 0;

/**
 * @typedef {{
 *   name: string, label: string, draw: 'line'|'step'|'area',
 *   value: (point: any) => number|null|undefined,
 * }} Line `name` is its class in page.css
 * @typedef {{name: string, label: string, value: number}} Mark a level, as the SLA
 */

export class Chart {
  /**
   * @param {{title: string, unit: string, wide?: boolean, lines: Line[],
   *   text: (n: number|null|undefined) => string, tick: (n: number) => string,
   *   whole?: boolean, limit?: number,
   * }} plan
   * @param {(at: number|null) => void} onPoint
   */
  constructor(plan, onPoint) {
    this.plan = plan;
    this.onPoint = onPoint;
    this.points = [];
    this.marks = [];
    this.now = 0;
    this.span = SPAN;
    this.width = 0;
    this.pointed = null;
    const id = `plot-${(charts += 1)}`;
    this.clip = svg('rect', { x: LEFT, y: 0, height: HEIGHT - BOTTOM });
    this.grid = svg('g.grid');
    this.levels = svg('g.levels');
    this.paths = plan.lines.map((l) => svg(`path.${l.name}`, { 'data-draw': l.draw }));
    this.cross = svg('path.cross');
    this.dots = svg('g.dots');
    this.svg = svg(
      'svg', { 'aria-hidden': 'true', height: HEIGHT },
      svg('clipPath', { id }, this.clip),
      this.grid,
      // Surfaces below lines.
      svg('g', { 'clip-path': `url(#${id})` }, ...this.paths.toSorted((a, b) => (
        Number(b.dataset.draw === 'area') - Number(a.dataset.draw === 'area')))),
      this.levels, this.cross, this.dots,
    );
    this.plot = el('div.plot', {
      tabindex: '0', role: 'slider', 'aria-label': `${plan.title}, crosshair`,
      'aria-valuemin': -SPAN, 'aria-valuemax': 0, 'aria-valuenow': 0,
    }, this.svg);
    this.values = plan.lines.map(() => el('b'));
    this.when = el('span.when');
    const keys = plan.lines.map((l, i) => el(
      'li', {}, svg('svg.key', { viewBox: '0 0 16 8', 'aria-hidden': 'true' },
        svg(`path.${l.name}`, { 'data-draw': l.draw, d: l.draw === 'area' ? 'M0 8V2H16V8Z' : 'M0 4H16' })),
      `${l.label} `, this.values[i],
    ));
    this.element = el(
      'figure.chart', { 'data-wide': Boolean(plan.wide) },
      el('figcaption', {}, el('span.title', {}, plan.title, ' ', el('span.unit', {}, plan.unit)), this.when),
      el('ul.keys', {}, ...keys),
      this.plot,
    );
    this.#listen();
  }

  #listen() {
    new ResizeObserver(([entry]) => {
      this.width = Math.floor(entry.contentRect.width);
      this.draw();
    }).observe(this.plot);
    this.plot.addEventListener('pointermove', (event) => this.onPoint(this.#time(event.offsetX)));
    this.plot.addEventListener('pointerdown', (event) => this.onPoint(this.#time(event.offsetX)));
    this.plot.addEventListener('pointerleave', () => this.onPoint(null));
    this.plot.addEventListener('blur', () => this.onPoint(null));
    this.plot.addEventListener('keydown', (event) => this.#key(event));
  }

  #key(event) {
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowDown: -1, ArrowUp: 1, PageDown: -60, PageUp: 60, Home: -Infinity, End: Infinity };
    if (event.key === 'Escape' && this.pointed) this.onPoint(null);
    else if (event.key in moves && this.points.length) {
      const at = this.pointed?.at ?? Infinity;
      const from = this.points.findLastIndex((p) => p.at <= at);
      const to = Math.max(0, Math.min(this.points.length - 1, from + moves[event.key]));
      this.onPoint(this.points[to].at);
    } else return;
    event.preventDefault();
  }

  /** @param {import('./series.js').Series} series @param {number} now @param {Mark[]} marks */
  update(series, now, marks = []) {
    Object.assign(this, { points: series.points, span: series.span, now, marks });
    // What the server remembers replaces points: the crosshair stays at its time.
    if (this.pointed) this.pointed = nearest(this.points, this.pointed.at);
    this.draw();
  }

  /** Put the crosshair at a time, or take it away. @param {number|null} at */
  point(at) {
    this.pointed = at == null ? null : nearest(this.points, at);
    this.#read();
  }

  draw() {
    if (!this.width || !this.now) return;
    put(this.svg, 'width', this.width);
    put(this.svg, 'viewBox', `0 0 ${this.width} ${HEIGHT}`);
    put(this.clip, 'width', Math.max(0, this.width - LEFT - RIGHT));
    let most = Math.max(0, ...this.marks.map((m) => 1.15 * m.value));
    for (const { value } of this.plan.lines) {
      for (const p of this.points) if (value(p) > most) most = value(p);
    }
    if (this.plan.limit) most = Math.max(Math.min(most, this.plan.limit), 0);
    this.most = this.#top(most);
    const base = HEIGHT - BOTTOM;
    const x = (at) => this.width - RIGHT - ((this.now - at) * (this.width - LEFT - RIGHT)) / this.span;
    const y = (v) => base - ((base - TOP) * v) / this.most;
    this.x = x;
    this.y = y;
    this.plan.lines.forEach((l, i) => {
      put(this.paths[i], 'd', DRAWN[l.draw](this.points, { x, y, value: l.value }, base));
    });
    this.#axes(x, y, base);
    this.#read();
  }

  #top(most) {
    const step = roundUp(most / 4);
    this.step = this.plan.whole ? Math.max(1, Math.ceil(step)) : step;
    return Math.max(this.step, this.step * Math.ceil(most / this.step - 0.001));
  }

  #axes(x, y, base) {
    const right = this.width - RIGHT;
    const drawn = [];
    for (let v = 0; v <= this.most * 1.001; v += this.step) {
      drawn.push(svg('path', { d: `M${LEFT} ${y(v).toFixed(1)}H${right}` }));
      drawn.push(svg('text', { x: LEFT - 6, y: y(v) + 3.5, 'text-anchor': 'end' }, this.plan.tick(v)));
    }
    const fitting = Math.floor((right - LEFT) / 70);
    const every = [30, 60, 120, 180, 300].find((s) => this.span / s <= fitting) ?? 600;
    const text = every < 60 ? clock : minutes;
    for (let t = Math.ceil((this.now - this.span) / every) * every; t <= this.now; t += every) {
      drawn.push(svg('path', { d: `M${x(t).toFixed(1)} ${base}v4` }));
      // A time that does not fit whole is left out.
      if (x(t) > LEFT && x(t) < right - 12) drawn.push(svg('text', { x: x(t), y: HEIGHT - 5, 'text-anchor': 'middle' }, text(t)));
    }
    arrange(this.grid, drawn);
    arrange(this.levels, this.marks.flatMap((m, i) => [
      svg(`path.${m.name}`, { d: `M${LEFT} ${y(m.value).toFixed(1)}H${right}` }),
      svg(`text.${m.name}`, label(i, this.marks.map((other) => y(other.value)), right), `${m.label} ${this.plan.text(m.value)}`),
    ]));
  }

  /** Write the values below the crosshair, or the latest ones. */
  #read() {
    const point = this.pointed ?? this.points.at(-1);
    const texts = this.plan.lines.map((l) => this.plan.text(point && l.value(point)));
    texts.forEach((text, i) => say(this.values[i], text));
    say(this.when, this.pointed ? clock(this.pointed.at) : 'now');
    put(this.element, 'data-pointed', Boolean(this.pointed));
    put(this.plot, 'aria-valuenow', this.pointed ? Math.round(this.pointed.at - this.now) : 0);
    // Who listens to the latest values would hear nothing else.
    const moved = this.pointed !== this.told;
    this.told = this.pointed;
    if (moved || this.pointed || document.activeElement !== this.plot) put(this.plot, 'aria-valuetext', `${this.pointed ? clock(this.pointed.at) : 'now'}: ${this.plan.lines.map((l, i) => `${l.label} ${texts[i]}`).join(', ')}`);
    if (!this.x) return;
    put(this.cross, 'd', this.pointed ? `M${this.x(this.pointed.at).toFixed(1)} ${TOP}V${HEIGHT - BOTTOM}` : '');
    arrange(this.dots, this.pointed ? this.#spots(this.pointed) : []);
  }

  #spots(point) {
    return this.plan.lines.filter((l) => l.value(point) != null).map((l) => svg(
      `circle.${l.name}`, { cx: this.x(point.at), cy: Math.max(TOP, this.y(l.value(point))), r: 3 },
    ));
  }

  #time(offset) {
    return this.now - ((this.width - RIGHT - offset) * this.span) / (this.width - LEFT - RIGHT);
  }
}

/**
 * Where the label of a level stands: above its line, and at the other end where another one's would
 * be in its way.
 * @param {number} i @param {number[]} ys of all levels @param {number} right
 */
function label(i, ys, right) {
  const crowded = ys.some((y, j) => j > i && Math.abs(y - ys[i]) < LABEL);
  const end = crowded ? { x: right - 5, 'text-anchor': 'end' } : { x: LEFT + 5 };
  return { ...end, y: ys[i] - 4 };
}

/** @param {any[]} points in the order of time @param {number} at */
function nearest(points, at) {
  let low = 0;
  let high = points.length - 1;
  if (high < 0) return null;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle].at < at) low = middle + 1;
    else high = middle;
  }
  const before = points[low - 1];
  return before && at - before.at < points[low].at - at ? before : points[low];
}
