/** One model: its last 15 minutes, what runs it, and every decision of the last minutes in words. */

import { Chart } from './chart.js';
import { Decisions, LIMITS } from './decisions.js';
import { arrange, el, put, say, show } from './dom.js';
import { clock, cores, covered, duration, percent, rate, throttled, whole } from './format.js';
import { onGpu, responseTime } from './row.js';
import { Series } from './series.js';
import { Mark, shown } from './states.js';
import { DecisionFeed } from './decision-feed.js';
import { api } from './stream.js';
import { terms } from './terms.js';

const FACTS = ['Response time', 'Promise', 'Requests', 'Late, last minute', 'Queue', 'On GPU', 'Cores', 'Throttled'];
const GPU = FACTS.indexOf('On GPU');

const milliseconds = (v) => (v >= 1 ? `${Number(v.toFixed(2))} s` : `${Math.round(v * 1000)} ms`);
const trimmed = (v) => String(Number(v.toFixed(2)));

/** @returns {any[]} what the charts are about */
const plans = () => [
  {
    title: 'Response time', unit: 'queue and execution', wide: true, text: duration, tick: milliseconds,
    lines: [
      { name: 'oldest', label: 'oldest request now', draw: 'line', value: (p) => p.oldest_age },
      { name: 'main', label: 'response time', draw: 'line', value: (p) => p.response_time },
    ],
  },
  {
    title: 'Requests', unit: 'per second', text: rate, tick: trimmed,
    lines: [
      { name: 'arrivals', label: 'arrived', draw: 'line', value: (p) => p.arrivals },
      { name: 'kept', label: 'in time', draw: 'line', value: (p) => (p.ended == null ? null : p.ended - (p.broken ?? 0)) },
      { name: 'broken', label: 'late, refused, failed', draw: 'area', value: (p) => p.broken },
    ],
  },
  {
    title: 'Cores', unit: '', text: (n) => cores(n, 2), tick: trimmed,
    lines: [
      { name: 'used', label: 'used', draw: 'area', value: (p) => p.used },
      { name: 'demanded', label: 'demanded', draw: 'step', value: (p) => p.demanded },
      { name: 'allocated', label: 'allocated', draw: 'step', value: (p) => p.allocated },
      { name: 'applied', label: 'applied', draw: 'step', value: (p) => p.applied },
    ],
  },
  {
    title: 'Queue', unit: 'requests waiting', text: whole, tick: trimmed, whole: true,
    lines: [{ name: 'main', label: 'waiting', draw: 'area', value: (p) => p.waiting }],
  },
  {
    title: 'Shares', unit: '', text: percent, tick: (v) => `${Math.round(v * 100)} %`,
    lines: [
      { name: 'throttled', label: 'throttled', draw: 'area', value: (p) => p.throttled },
      { name: 'gpu', label: 'answered by GPUs', draw: 'line', value: (p) => p.on_gpu },
    ],
  },
];

const EXECUTABLE = [
  ['Executable', (e) => e.executable], ['State', (e) => e.state], ['Worker', (e) => e.worker],
  ['Device', (e) => e.device.toUpperCase()],
  ['Demanded', (e) => cores(e.demand, 3)], ['Allocated', (e) => cores(e.allocation, 3)],
  ['Applied', (e) => cores(e.applied, 3)], ['Observed', (e) => cores(e.observed, 3)],
  ['Used', (e) => cores(e.used, 3)],
  ['Bounds', (e) => (e.minimum == null ? '–' : `${e.minimum} to ${e.maximum}`)],
  ['Throttled', throttled], ['Running', (e) => String(e.in_flight)],
  ['Limited by', (e) => e.failure || (LIMITS[e.limit] ?? e.limit)],
];

const NUMERIC = new Set(['Demanded', 'Allocated', 'Applied', 'Observed', 'Used', 'Throttled', 'Running']);

export class Detail {
  /** @param {HTMLElement} place @param {() => void} onNews asks for `update` */
  constructor(place, onNews) {
    this.place = place;
    this.onNews = onNews;
    this.model = '';
    this.mark = new Mark();
    this.heading = el('h1', { tabindex: '-1' });
    this.why = el('p.why');
    this.charts = plans().map((plan) => new Chart(plan, (at) => this.#point(at)));
    this.facts = FACTS.map((name) => {
      const value = el('dd');
      return { value, element: el('div', {}, el('dt', {}, name), value) };
    });
    this.rows = el('tbody');
    /** @type {Map<string, HTMLElement>} the row of each executable */
    this.cells = new Map();
    /** @type {Set<string>} the executables of now */
    this.served = new Set();
    this.latest = el('div.latest');
    const head = EXECUTABLE.map(([name]) => el('th', { scope: 'col', class: NUMERIC.has(name) ? 'num' : null }, name));
    this.content = el(
      'div', {},
      el('dl.facts', {}, ...this.facts.map((f) => f.element)),
      el('div.charts', {}, ...this.charts.map((c) => c.element)),
      el('section', { 'aria-label': 'Executables' }, el('div.section-head', {}, el('h2', {}, 'Executables')),
        el('div.wide', { tabindex: '0', role: 'group', 'aria-label': 'Executables, scrollable' },
          el('table.executables', {}, el('thead', {}, el('tr', {}, ...head)), this.rows))),
    );
    this.aside = el('section', { 'aria-label': 'Latest demand' },
      el('div.section-head', {}, el('h2', {}, 'Latest demand')), this.latest);
    this.below = el('div.below');
    place.append(
      el('nav.back', { 'aria-label': 'Back' }, el('a', { href: '#' }, '← All models'), el('kbd', { 'aria-hidden': 'true' }, 'Esc')),
      el('div.detail-head', {}, this.mark.element, this.heading),
      this.why, this.content, this.below,
    );
  }

  /** @param {string} model or nothing */
  open(model) {
    this.model = model;
    this.feed?.stop();
    this.feed = null;
    this.series = new Series(1);
    if (!model) return;
    say(this.heading, model);
    say(this.why, '');
    this.decisions = new Decisions();
    arrange(this.below, [this.decisions.element, this.aside]);
    arrange(this.latest, []);
    this.cells.clear();
    this.served.clear();
    this.#begin();
    this.refetch();
  }

  #begin() {
    this.feed = new DecisionFeed(this.model, (feed) => this.#told(feed));
  }

  /** Fetch what the server remembers of this model; what is known here stays. */
  async refetch() {
    const { model, series } = this;
    if (!model) return;
    try {
      const answer = await fetch(api(`control/v1/history?${new URLSearchParams({ model })}`), { signal: AbortSignal.timeout(5000) });
      if (!answer.ok) return;
      series.join(await answer.json());
      this.onNews();
    } catch {
      // The line to the dispatcher tells that it is gone, and this is asked again after.
    }
  }

  /** @param {any} view */
  add(view) {
    const row = view.models.find((m) => m.model === this.model);
    if (row) this.series.add(view.at, row);
  }

  /** @param {any} view */
  update(view) {
    const row = view.models.find((m) => m.model === this.model);
    show(this.content, Boolean(row));
    show(this.mark.element, Boolean(row));
    show(this.below, Boolean(row));
    if (row && !this.feed) this.#begin();
    if (!row) {
      this.feed?.stop();
      this.feed = null;
      say(this.why, view.models.length ? 'No model of this name is served.' : 'Waiting for the first look at the models.');
      return;
    }
    this.mark.update(shown(row));
    put(this.place, 'data-state', shown(row));
    say(this.why, row.why);
    this.#facts(row);
    const marks = [
      { name: 'aim', label: 'set point', value: row.set_point },
      { name: 'sla', label: `SLA ${covered(row)}`, value: row.sla },
    ];
    // Beyond four times the SLA the rest of the picture would be flat.
    this.charts[0].plan.limit = 4 * row.sla;
    this.charts.forEach((chart, i) => chart.update(this.series, view.at, i ? [] : marks));
    this.#executables(row.executables);
  }

  #executables(executables) {
    arrange(this.rows, executables.map((e) => {
      const known = this.cells.get(e.executable);
      if (known) return known;
      const cells = EXECUTABLE.map(([name], i) => el(i ? 'td' : 'th', { scope: i ? null : 'row', class: NUMERIC.has(name) ? 'num' : null }));
      const line = el('tr', {}, ...cells);
      this.cells.set(e.executable, line);
      return line;
    }));
    this.served = new Set(executables.map((e) => e.executable));
    for (const e of executables) {
      const line = this.cells.get(e.executable);
      put(line, 'data-live', ['idle', 'busy', 'suspected'].includes(e.state));
      EXECUTABLE.forEach(([, text], i) => say(line.children[i], text(e)));
    }
  }

  #facts(row) {
    const late = row.oldest_age > row.set_point ? `, oldest ${duration(row.oldest_age)}` : '';
    const texts = [
      `${responseTime(row)} ${row.statistic}`,
      `${duration(row.sla)} ${covered(row)}, aims for ${duration(row.set_point)}`,
      `${rate(row.arrivals)} per second`,
      percent(row.late_share),
      `${row.waiting} waiting, ${row.in_flight} running${late}`,
      percent(row.gpu_share),
      `${cores(row.demanded)} demanded, ${cores(row.allocated)} allocated, ${cores(row.applied)} applied, ${cores(row.used)} used`,
      throttled(row),
    ];
    texts.forEach((text, i) => say(this.facts[i].value, text));
    show(this.facts[GPU].element, onGpu(row));
  }

  #told(feed) {
    if (feed !== this.feed) return;
    this.decisions.update(feed);
    // What a replica that is gone was given last is no demand of now.
    const latest = feed.latest.filter((d) => this.served.has(d.executable));
    arrange(this.latest, latest.map((d) => el(
      'div.block', {}, el('h3', {}, `${d.executable}, ${clock(d.at)}`), terms(d.demand),
      el('p.shared', {}, `allocated ${cores(d.allocation, 3)} · applied ${cores(d.applied, 3)} · ${d.demand.why}`),
    )));
  }

  #point(at) {
    for (const chart of this.charts) chart.point(at);
  }
}
