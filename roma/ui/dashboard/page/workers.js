/** The workers: what their cores are asked for, given and used, and who controls them. */

import { arrange, el, put, say, show } from './dom.js';
import { cores, wait } from './format.js';
import { Cores } from './glyphs.js';
import { isShort } from './states.js';

class Worker {
  constructor(name) {
    this.badge = el('span.badge');
    this.eta = el('span.eta', { title: 'η: capacity over what is demanded of it' });
    this.bar = new Cores();
    this.numbers = el('span.numbers');
    this.element = el(
      'li', {},
      el('span.worker-line', {}, el('b.worker-name', { title: name }, name), this.badge, this.eta),
      this.bar.element,
      this.numbers,
    );
  }

  /** @param {any} worker */
  update(worker) {
    const { state, word } = condition(worker);
    put(this.element, 'data-state', state);
    say(this.badge, word);
    put(this.badge, 'title', worker.error || worker.mode || null);
    show(this.eta, worker.eta != null);
    say(this.eta, `η ${worker.eta == null ? '' : worker.eta.toFixed(2)}`);
    const most = Math.max(worker.capacity ?? 0, worker.demanded ?? 0) || 1;
    this.bar.update(worker, most);
    say(this.numbers, worker.answers
      ? `demanded ${cores(worker.demanded)} · applied ${cores(worker.applied)} · used ${cores(worker.used)} of ${cores(worker.capacity)} cores`
      : `its cores do not follow the load: ${worker.error}`);
  }
}

/** @returns {{state: string, word: string}} */
function condition(worker) {
  if (!worker.answers) return { state: 'down', word: `supervisor silent for ${wait(worker.silent_for)}` };
  if (worker.uncontrolled) return { state: 'late', word: `not controlled: ${worker.uncontrolled}` };
  if (worker.mode === 'dry-run') return { state: 'tight', word: 'dry run: nothing is applied' };
  if (worker.mode !== 'control') return { state: 'tight', word: worker.mode || 'unknown mode' };
  if (worker.contended) return { state: 'late', word: 'host busy with others' };
  if (isShort(worker)) return { state: 'late', word: 'short of cores' };
  return { state: 'ok', word: 'in control' };
}

export class Workers {
  /** @param {HTMLElement} place */
  constructor(place) {
    this.place = place;
    /** @type {Map<string, Worker>} */
    this.known = new Map();
  }

  /** @param {any[]} workers */
  update(workers) {
    const elements = workers.map((worker) => {
      let mine = this.known.get(worker.worker);
      if (!mine) this.known.set(worker.worker, (mine = new Worker(worker.worker)));
      mine.update(worker);
      return mine.element;
    });
    arrange(this.place, elements);
  }
}
