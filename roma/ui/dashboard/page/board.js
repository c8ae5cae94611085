/** The overview: one row per model, the worst first, and what to look for. */

import { arrange, el, put, say, show } from './dom.js';
import { roundUp } from './lines.js';
import { Row, onGpu } from './row.js';
import { Mark, WORDS, shown, tally } from './states.js';

/** Rows in the document at most. Of a fleet of thousands the worst are shown, others when asked for. */
const MOST = 200;

/** Pictures of the last minutes drawn per look. */
const DRAWN = 15;

/** Milliseconds between two changes of the order while no state changes. */
const SETTLED = 5000;

/** Milliseconds that the order keeps still after the pointer moved over the rows. */
const POINTED = 1000;

/** States in which models keep their places: nobody needs them shuffled by how calm they are. */
const CALM = new Set(['ok', 'idle']);

const COLUMNS = [
  ['mark', 'State'], ['model', 'Model and why'], ['time', 'Response time'],
  ['history', ''], ['rate', 'Req/s'], ['late', 'Late, 1 min'], ['queue', 'Queue'],
  ['gpu', 'On GPU'], ['cores', 'Cores'], ['throttled', 'Throttled'],
];

export class Board {
  /** @param {HTMLElement} place @param {HTMLElement} tools */
  constructor(place, tools) {
    /** @type {Map<string, Row>} */
    this.rows = new Map();
    /** @type {string[]} the models in the order on the page */
    this.order = [];
    this.states = '';
    this.looks = 0;
    this.sorted = 0;
    this.pointed = -Infinity;
    this.chosen = '';
    this.body = el('tbody', { role: 'rowgroup' });
    this.empty = el('p.empty', { hidden: true });
    this.span = el('span');
    const head = COLUMNS.map(([name, text]) => el(`th.${name}`, { role: 'columnheader', scope: 'col' }, ...(name === 'history' ? [this.span] : heading(name, text))));
    this.table = el(
      'table.board', { role: 'table', 'aria-label': 'Models, the worst first' },
      el('thead', { role: 'rowgroup' }, el('tr', { role: 'row' }, ...head)),
      this.body,
    );
    place.append(this.table, this.empty);
    this.#addTools(tools);
    this.body.addEventListener('pointermove', () => { this.pointed = performance.now(); });
    this.body.addEventListener('click', (event) => this.#follow(event));
  }

  /** @param {{at: number, models: any[]}} view @param {import('./series.js').Memory} memory */
  update(view, memory) {
    Object.assign(this, { view, memory });
    const most = Math.max(0.1, ...view.models.map((m) => Math.max(m.demanded ?? 0, m.applied ?? 0)));
    // The scale of all rows grows at once and shrinks only when it is far too large.
    if (!(most <= this.most && most > 0.4 * this.most)) this.most = roundUp(most);
    this.looks += 1;
    this.#sort();
    this.#show();
    put(this.table, 'data-gpus', view.models.some(onGpu));
    say(this.span, `Last ${Math.round(memory.span / 60)} min`);
    const counts = tally(view.models.map(shown));
    for (const [state, chip] of Object.entries(this.chips)) {
      say(chip.count, String(counts[state]));
      show(chip.element, counts[state] > 0 || this.chosen === state);
    }
  }

  /** Focus the filter. */
  find() {
    this.input.focus();
    this.input.select();
  }

  /** Focus a model's row, as after a look at its decisions. @param {string} model */
  focus(model) {
    this.rows.get(model)?.link.focus({ preventScroll: true });
  }

  #addTools(tools) {
    this.input = el('input', {
      type: 'search', placeholder: 'Filter by name or state', 'aria-label': 'Filter by name or state',
      autocomplete: 'off', spellcheck: 'false',
    });
    this.input.addEventListener('input', () => this.#show());
    this.chips = {};
    for (const state of Object.keys(WORDS)) {
      const mark = new Mark();
      mark.update(/** @type {any} */ (state));
      const number = el('span.count');
      const element = el('button.chip', { type: 'button', 'aria-pressed': 'false', hidden: true }, mark.element, number);
      element.addEventListener('click', () => this.#choose(this.chosen === state ? '' : state));
      this.chips[state] = { element, count: number };
    }
    const chips = Object.values(this.chips).map((chip) => chip.element);
    tools.append(
      el('label.filter', {}, this.input, el('kbd', { 'aria-hidden': 'true' }, '/')),
      el('div.chips', { role: 'group', 'aria-label': 'Show one state' }, ...chips),
    );
  }

  #choose(state) {
    this.chosen = state;
    for (const [name, chip] of Object.entries(this.chips)) {
      put(chip.element, 'aria-pressed', String(name === state));
    }
    this.#show();
  }

  /** A click anywhere on a row follows its link, unless it ends a selection of text. */
  #follow(event) {
    const row = event.target.closest('tr');
    if (!row || event.target.closest('a') || String(getSelection())) return;
    row.querySelector('a.name').click();
  }

  #sort() {
    const { models } = this.view;
    const states = models.map((m) => `${m.model} ${m.state}`).sort().join();
    const now = performance.now();
    const changed = states !== this.states;
    if (!changed && now - this.sorted < SETTLED) return;
    const served = this.order.length === models.length;
    if (served && now - this.pointed < POINTED && now - this.sorted < SETTLED) return;
    this.states = states;
    this.sorted = now;
    this.order = settle(this.order, models);
    const alive = new Set(this.order);
    for (const model of this.rows.keys()) if (!alive.has(model)) this.rows.delete(model);
  }

  /** Show the models that match, and say so if none does. */
  #show() {
    if (!this.view) return;
    const text = this.input.value.trim().toLowerCase();
    const models = new Map(this.view.models.map((m) => [m.model, m]));
    const found = this.order.map((model) => models.get(model)).filter((m) => m && this.#matches(m, text));
    const drawn = found.slice(0, MOST);
    const scale = { now: this.view.at, span: this.memory.span, cores: this.most };
    // Of many pictures some are drawn anew each second, in turns: a frame has 16 ms.
    const turns = Math.ceil(drawn.length / DRAWN);
    const elements = drawn.map((m, i) => {
      let row = this.rows.get(m.model);
      if (!row) this.rows.set(m.model, (row = new Row(m.model)));
      row.update(m, this.memory.of(m.model), scale, (i + this.looks) % turns === 0);
      return row.element;
    });
    this.#arrange(elements);
    show(this.table, found.length > 0);
    show(this.empty, found.length !== elements.length || !found.length);
    say(this.empty, this.#explain(found.length, text));
  }

  /** Whether a model is of the chosen state, and its name and state hold all words of the text. */
  #matches(model, text) {
    const state = shown(model);
    if (this.chosen && state !== this.chosen) return false;
    const mine = `${model.model} ${WORDS[state]}`.toLowerCase();
    return text.split(/\s+/).every((word) => mine.includes(word));
  }

  #explain(found, text) {
    if (found) return `The first ${MOST} of ${found} models; the filter finds the others.`;
    if (!this.order.length) return 'No model is served yet, or the dispatcher has only just started.';
    const words = [text && `“${text}”`, this.chosen && `state “${WORDS[this.chosen]}”`];
    return `No model matches ${words.filter(Boolean).join(' and ')}. Esc clears the filter.`;
  }

  /** @returns {boolean} whether there was a filter to clear */
  clear() {
    if (!this.input.value && !this.chosen) return false;
    this.input.value = '';
    this.#choose('');
    return true;
  }

  #arrange(elements) {
    const focused = document.activeElement;
    arrange(this.body, elements);
    if (focused !== document.activeElement && focused instanceof HTMLElement && this.body.contains(focused)) {
      focused.focus({ preventScroll: true });
    }
  }
}

/** The header of the cores names the four numbers below it. */
function heading(name, text) {
  if (name !== 'cores') return [text];
  const names = ['demanded', 'allocated', 'applied', 'used'];
  return [el('span.unseen', {}, 'Cores: '), el('span.stages', {}, ...names.map((n) => el(`span.${n}`, {}, n)))];
}

/**
 * The server's order for models in trouble; calm ones stay where they are.
 * @param {string[]} before @param {any[]} models worst first
 */
export function settle(before, models) {
  const place = new Map(before.map((model, i) => [model, i]));
  const rank = { down: 0, loading: 1, late: 2, tight: 3, ok: 4, idle: 5 };
  const index = new Map(models.map((m, i) => [m.model, i]));
  return [...models].sort((a, b) => {
    if (shown(a) !== shown(b)) return rank[shown(a)] - rank[shown(b)];
    if (!CALM.has(a.state)) return index.get(a.model) - index.get(b.model);
    return (place.get(a.model) ?? -1) - (place.get(b.model) ?? -1) || index.get(a.model) - index.get(b.model);
  }).map((m) => m.model);
}
