/** The live page: what comes in, what is shown of it, and where the reader is. */

import { Board } from './board.js';
import { Detail } from './detail.js';
import { put, say, show } from './dom.js';
import { clock, count, wait } from './format.js';
import { Memory } from './series.js';
import { WORDS, headline, shown, tally } from './states.js';
import { Stream } from './stream.js';
import { Totals, link } from './totals.js';
import { Workers } from './workers.js';

const MEASURE = 'roma:update';

/** Milliseconds for which a dispatcher without models has only just started. */
const STARTING = 5000;

/** States that people are told of at once. */
const GRAVE = ['down', 'late'];

const at = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

class Page {
  constructor() {
    this.memory = new Memory();
    this.board = new Board(at('board'), at('tools'));
    this.totals = new Totals(at('totals'));
    this.workers = new Workers(at('workers'));
    this.detail = new Detail(at('detail'), () => this.draw());
    /** @type {any} the last view */
    this.view = null;
    /** @type {Map<string, boolean>} whether a model was in a grave state */
    this.states = new Map();
    this.drawing = false;
    this.scrolled = 0;
    /** Since when views have had no models; 0 if the last one had. */
    this.empty = 0;
  }

  start() {
    this.stream = new Stream({
      history: (history) => {
        this.memory.join(history);
        this.detail.refetch();
      },
      view: (view) => this.take(view),
      state: (stream) => this.condition(stream),
    });
    this.stream.start();
    addEventListener('hashchange', () => this.route());
    document.addEventListener('keydown', (event) => this.key(event));
    at('help').addEventListener('click', () => this.help());
    document.querySelector('.skip').addEventListener('click', (event) => {
      event.preventDefault(); // the address says which model is open
      at('content').focus();
    });
    this.route();
  }

  /** @param {any} view */
  take(view) {
    // A dispatcher that has just started has no rows for some looks: what is known stays.
    this.empty = view.models.length ? 0 : this.empty || performance.now();
    const fresh = this.empty && performance.now() - this.empty < STARTING;
    if (!view.at || (fresh && this.view?.models.length)) return;
    this.view = view;
    this.memory.add(view);
    this.detail.add(view);
    this.announce(view);
    this.condition(this.stream);
    this.head(); // also of a page that nobody looks at: its tab says how many are late
    this.draw();
  }

  /** Draw before the next frame, and not at all while nobody looks. */
  draw() {
    if (this.drawing) return;
    this.drawing = true;
    requestAnimationFrame(() => {
      this.drawing = false;
      if (!this.view) return;
      const begun = performance.now();
      this.paint();
      performance.clearMeasures(MEASURE);
      performance.measure(MEASURE, { start: begun, end: performance.now() });
    });
  }

  paint() {
    const { view } = this;
    say(at('name'), view.name);
    link(at('links'), view.links);
    if (this.detail.model) this.detail.update(view);
    else {
      this.totals.update(view);
      this.workers.update(view.workers);
      this.board.update(view, this.memory);
    }
  }

  /** The sentence on top, in the tab's title and in its icon. */
  head() {
    const counts = tally(this.view.models.map(shown));
    const { state, text } = headline(counts, this.view.workers);
    const lost = this.stream.state === 'lost';
    say(at('headline'), lost ? `Not known since ${clock(this.view.at)}` : text);
    put(at('headline'), 'data-state', lost ? 'idle' : state);
    const bad = counts.down + counts.late;
    say(document.querySelector('title'), `${lost ? 'lost · ' : bad ? `${bad} late · ` : ''}${this.view.name} · ROMA`);
    put(at('icon'), 'href', bad ? 'page/icon-late.svg' : 'page/icon.svg');
  }

  /** Say whether what is on the page is true now. @param {Stream} stream */
  condition(stream) {
    const { state } = stream;
    const lost = state === 'lost';
    show(at('banner'), lost || state === 'polling');
    const from = this.view ? `what you see is from ${clock(this.view.at)}` : 'nothing is known yet';
    if (lost) say(at('banner'), `The dispatcher does not answer since ${wait(stream.silent)}; ${from}. The page goes on by itself when it is back.`);
    if (state === 'polling') say(at('banner'), 'The dispatcher refuses another live stream: this page asks once a second instead.');
    put(at('banner'), 'data-state', lost ? 'down' : 'tight');
    put(at('clock'), 'data-state', state);
    say(at('clock'), { live: clock(this.view?.at), polling: clock(this.view?.at), connecting: 'connecting', lost: 'lost' }[state]);
    if (lost === this.lost) return;
    if (this.lost !== undefined) say(at('announcer'), lost ? 'The dispatcher does not answer.' : 'The dispatcher answers again.');
    this.lost = lost;
    put(document.body, 'data-lost', lost);
    if (this.view) this.head();
  }

  /** Tell those who listen which models broke their promise or keep it again; no numbers. */
  announce(view) {
    const grave = (m) => GRAVE.includes(m.state);
    const changed = view.models.filter((m) => (this.states.get(m.model) ?? grave(m)) !== grave(m));
    this.states = new Map(view.models.map((m) => [m.model, grave(m)]));
    if (!changed.length) return;
    const told = changed.slice(0, 3).map((m) => `${m.model}: ${WORDS[shown(m)]}, ${m.why}.`);
    if (changed.length > 3) told.push(`${count(changed.length - 3, 'other model')} changed.`);
    say(at('announcer'), told.join(' '));
  }

  /** Show what the address names. */
  route() {
    const model = named(location.hash);
    const before = this.detail.model;
    if (model === before) return;
    if (!before) this.scrolled = scrollY;
    show(at('overview'), !model);
    show(at('detail'), Boolean(model));
    this.detail.open(model);
    if (this.view) this.paint();
    if (model) {
      if (this.routed && !before) history.replaceState({ from: 'overview' }, '');
      scrollTo(0, 0);
      this.detail.heading.focus({ preventScroll: true });
    } else {
      scrollTo(0, this.scrolled);
      this.board.focus(before);
    }
    this.routed = true;
  }

  /** Back to all models: where the reader came from, or a page of its own after a link. */
  leave() {
    if (history.state?.from === 'overview') history.back();
    else location.hash = '';
  }

  /** List the keys; Esc or Close ends it, and the focus goes back. */
  help() {
    const keys = /** @type {HTMLDialogElement} */ (at('keys'));
    if (!keys.open) keys.showModal();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const keys = /** @type {HTMLDialogElement} */ (at('keys'));
    if (keys.open) {
      if (event.key === 'Escape') keys.close();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const typing = event.target instanceof HTMLInputElement && event.target.type !== 'checkbox';
    if (event.key === 'Escape') {
      if (this.detail.model) this.leave();
      else if (!this.board.clear() && typing) event.target.blur();
    } else if (event.key === '/' && !typing && !this.detail.model) {
      event.preventDefault();
      this.board.find();
    } else if (event.key === '?' && !typing) {
      this.help();
    }
  }
}

/** @param {string} hash @returns {string} the model in an address, or nothing */
function named(hash) {
  if (!hash.startsWith('#model=')) return '';
  try {
    return decodeURIComponent(hash.slice(7));
  } catch {
    return hash.slice(7); // a % that encodes nothing
  }
}

const page = new Page();
page.routed = false;
page.start();
page.routed = true;
