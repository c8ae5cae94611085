/** Decisions and refusals in words, newest first, each with all its numbers behind it. */

import { arrange, el, put, say, show } from './dom.js';
import { clock, cores, count, plain, words } from './format.js';
import { terms } from './terms.js';

/** Cores. A smaller change is none to speak of. */
const MOVED = 0.005;

/** Refusals of a model that the dispatcher remembers (dispatcher/state/queues.py). */
const REMEMBERED = 50;

/** Items in the document at most. */
const MOST = 600;

export const LIMITS = {
  none: '–',
  contended: 'others have the host’s CPUs',
  worker_short: 'worker is short',
  own_maximum: 'its own maximum (cpu.max)',
  held: 'held: no data',
  failure: 'cannot be set',
  not_ready: 'not ready',
};

class Item {
  constructor(moment) {
    this.time = el('time', { datetime: new Date(moment.at * 1000).toISOString() }, clock(moment.at));
    this.who = el('span.who');
    this.move = el('span.move');
    this.words = el('span.words');
    this.body = el('div.numbers');
    const summary = el('summary', {}, this.time, el('span.head', {}, this.move, this.who), this.words);
    this.details = el('details', {}, summary, this.body);
    this.details.addEventListener('toggle', () => this.#open());
    this.element = el('li', {}, this.details);
  }

  /** @param {any} moment @param {boolean} several executables */
  update(moment, several) {
    this.moment = moment;
    this.several = several;
    if (moment.decision) this.#decided(moment, several);
    else this.#refused(moment.refusals);
    // A period later the kernel's word comes, and a second of refusals may still grow.
    const said = moment.decision ? `${moment.decision.observed} ${moment.decision.failure}` : String(moment.refusals.length);
    if (said !== this.said) this.body.replaceChildren();
    this.said = said;
    this.#open();
  }

  #decided({ decision, before }, several) {
    const delta = before == null || decision.applied == null ? 0 : decision.applied - before;
    this.moved = Math.abs(delta) >= MOVED || Boolean(decision.failure);
    const arrow = delta > 0 ? '▲' : '▼';
    put(this.element, 'data-kind', this.moved ? (delta > 0 ? 'more' : 'less') : 'same');
    say(this.move, this.moved ? `${arrow} ${cores(before, 3)} → ${cores(decision.applied, 3)}` : `${cores(decision.applied, 3)} cores`);
    say(this.who, several ? decision.executable : '');
    say(this.words, decision.words);
  }

  #refused(refusals) {
    const last = refusals.at(-1);
    this.moved = true;
    put(this.element, 'data-kind', 'refusal');
    const least = refusals.length >= REMEMBERED ? 'at least ' : '';
    say(this.move, `✕ ${least}${count(refusals.length, 'refusal')}`);
    say(this.words, `Refused (${words(last.reason)}): ${last.detail}`);
  }

  /** The numbers are many: they are written when somebody asks for them. */
  #open() {
    if (!this.details.open || this.body.firstChild) return;
    const { decision, refusals } = this.moment;
    if (!decision) {
      this.body.append(el('ul.refusals', {}, ...refusals.map((r) => el('li', {}, `${clock(r.at)} request ${r.request}: ${words(r.reason)}, ${r.detail}, worth another try in ${plain(r.retry_after)} s`))));
      return;
    }
    const { demand, measurement } = decision;
    const shared = ['wanted', 'minimum', 'maximum', 'floor', 'total', 'capacity', 'eta', 'exact', 'allocation', 'applied', 'observed', 'used', 'dt', 'failure'];
    this.body.append(
      block('Terms of the demand, cores', terms(demand)),
      block('Facts the law went by', list(demand.facts)),
      measurement && block('Measurement', list(measurement)),
      block('Sharing', list(Object.fromEntries(shared.map((name) => [name, decision[name]])))),
    );
  }
}

export class Decisions {
  constructor() {
    /** @type {Map<string, Item>} */
    this.items = new Map();
    this.held = null;
    this.list = el('ol.decisions', { 'aria-label': 'Decisions, newest first' });
    // On a phone the list is long and the charts are above it: it opens when it is asked for.
    this.fold = el('details.fold', { open: !matchMedia('(max-width: 640px)').matches },
      el('summary', {}, 'All of them'), this.list);
    this.note = el('p.note', { hidden: true });
    this.moves = el('input', { type: 'checkbox' });
    this.moves.addEventListener('change', () => this.#draw());
    this.pause = el('button', { type: 'button' }, 'Pause');
    this.pause.addEventListener('click', () => this.#hold());
    this.element = el(
      'section', { 'aria-label': 'Decisions' },
      el('div.section-head', {}, el('h2', {}, 'Decisions'),
        el('label.check', {}, this.moves, 'only changes and refusals'), this.pause),
      this.note, this.fold,
    );
  }

  /** @param {import('./decision-feed.js').DecisionFeed} feed */
  update(feed) {
    this.feed = feed;
    const silent = Object.entries(feed.silent).map(([worker, why]) => `Decisions of worker ${worker} are missing: ${why}.`);
    if (feed.failure) silent.unshift(`What was decided since is not known: ${feed.failure}.`);
    show(this.note, silent.length > 0);
    say(this.note, silent.join(' '));
    const moments = feed.moments;
    if (this.held) say(this.pause, `Go on, ${moments.filter((m) => m.at > this.since).length} new`);
    else this.#take(moments);
  }

  #hold() {
    this.held = this.held ? null : true;
    this.since = this.shown?.[0]?.at ?? 0;
    say(this.pause, this.held ? 'Go on' : 'Pause');
    if (this.feed) this.update(this.feed);
  }

  #take(moments) {
    this.shown = moments.slice(0, MOST);
    const several = new Set(this.shown.map((m) => m.decision?.executable).filter(Boolean)).size > 1;
    const alive = new Set();
    for (const moment of this.shown) {
      alive.add(moment.key);
      let item = this.items.get(moment.key);
      if (!item) this.items.set(moment.key, (item = new Item(moment)));
      item.update(moment, several);
    }
    for (const key of this.items.keys()) if (!alive.has(key)) this.items.delete(key);
    this.#draw();
  }

  #draw() {
    const items = (this.shown ?? []).map((m) => this.items.get(m.key));
    const chosen = this.moves.checked ? items.filter((item) => item.moved) : items;
    this.none ??= el('li.none');
    say(this.none, items.length
      ? 'Nothing moved and nothing was refused in the last minutes.'
      : 'Nothing was decided in the last minutes: nobody controls the cores of what runs this model, or it has only just begun.');
    arrange(this.list, chosen.length ? chosen.map((item) => item.element) : [this.none]);
  }
}

function block(title, content) {
  return el('div.block', {}, el('h3', {}, title), content);
}

function list(values) {
  const pairs = Object.entries(values ?? {}).filter(([, value]) => value != null);
  if (!pairs.length) return el('p', {}, 'none');
  return el('dl', {}, ...pairs.map(([name, value]) => el('div', {}, el('dt', {}, words(name)), el('dd', {}, plain(value)))));
}
