/**
 * How a model is doing: a shape, a word and a colour, and one sentence for all of them.
 *
 * The state itself is the server's (roma/ui/dashboard/diagnosis.py); the page only tells a model that is
 * still loading from one that is gone.
 */

import { el, put, say, svg } from './dom.js';
import { count } from './format.js';

/** @typedef {'down'|'loading'|'late'|'tight'|'ok'|'idle'} Shown */

/** @type {Record<Shown, string>} The order is that of attention. */
export const WORDS = {
  down: 'Down',
  late: 'Late',
  tight: 'Tight',
  loading: 'Loading',
  ok: 'In time',
  idle: 'Idle',
};

/** Shapes in a box of 12 × 12. The first letter says whether they are filled or stroked. */
const SHAPES = {
  down: 'sM2.5 2.5 9.5 9.5M9.5 2.5 2.5 9.5',
  late: 'fM6 .9 11.6 11H.4Z',
  tight: 'fM6 .6 11.4 6 6 11.4 .6 6Z',
  loading: 'sM6 1.8A4.2 4.2 0 1 1 1.8 6',
  ok: 'sM1.8 6.6 4.7 9.4 10.2 3',
  idle: 'sM6 2.6A3.4 3.4 0 1 1 5.99 2.6Z',
};

/** @param {{state: string, executables: {state: string, reason?: string}[]}} row @returns {Shown} */
export function shown(row) {
  const loading = row.state === 'down' && row.executables.some((e) => e.state === 'loading' && !e.reason);
  return loading ? 'loading' : /** @type {Shown} */ (row.state);
}

/** A state's mark: shape and word. */
export class Mark {
  constructor() {
    this.path = svg('path');
    this.word = el('span');
    const icon = svg('svg.icon', { viewBox: '0 0 12 12', 'aria-hidden': 'true' }, this.path);
    this.element = el('span.state', {}, icon, this.word);
  }

  /** @param {Shown} state */
  update(state) {
    const shape = SHAPES[state] ?? SHAPES.idle;
    put(this.element, 'data-state', state);
    put(this.path, 'class', shape[0] === 'f' ? 'filled' : 'stroked');
    put(this.path, 'd', shape.slice(1));
    say(this.word, WORDS[state] ?? state);
  }
}

/** @param {Iterable<Shown>} states @returns {Record<Shown, number>} */
export function tally(states) {
  const found = { down: 0, late: 0, tight: 0, loading: 0, ok: 0, idle: 0 };
  for (const state of states) found[state] += 1;
  return found;
}

/**
 * @param {Record<Shown, number>} n
 * @param {{worker: string, answers: boolean, mode: string, eta: number|null}[]} workers
 * @returns {{state: Shown, text: string}} one sentence for the whole deployment
 */
export function headline(n, workers) {
  const all = Object.values(n).reduce((sum, some) => sum + some, 0);
  if (!all) return { state: 'idle', text: 'Waiting for the first look at the models' };
  const parts = [];
  if (n.down) parts.push(`${are(n.down, all)} down`);
  if (n.late) parts.push(`${n.down ? is(n.late) : are(n.late, all)} late`);
  const bad = parts.length > 0;
  if (n.loading) parts.push(`${bad ? is(n.loading) : are(n.loading, all)} loading`);
  if (!bad && n.tight) {
    parts.push(n.loading ? `${is(n.tight)} close to the SLA` : `All promises kept, ${is(n.tight)} close to the SLA`);
  }
  if (!parts.length) parts.push(n.idle === all ? 'No requests now' : 'All promises kept');
  const troubled = trouble(workers);
  if (troubled) parts.push(troubled);
  const worst = /** @type {Shown} */ (Object.keys(WORDS).find((state) => n[state]));
  return { state: worst, text: parts.join(', ') };
}

function is(n) {
  return `${n} ${n === 1 ? 'is' : 'are'}`;
}

function are(n, all) {
  if (all === 1) return 'The model is';
  return `${n} of ${count(all, 'model')} ${n === 1 ? 'is' : 'are'}`;
}

/** What stands in the way on workers, the first of it. */
function trouble(workers) {
  const silent = workers.find((w) => !w.answers);
  if (silent) return `supervisor of ${silent.worker} is silent`;
  const loose = workers.find((w) => w.uncontrolled);
  if (loose) return `nothing controls the cores of worker ${loose.worker}`;
  const passive = workers.find((w) => w.mode && w.mode !== 'control');
  if (passive) return `${passive.worker} only watches`;
  const contended = workers.find((w) => w.answers && w.contended);
  if (contended) return `the host of worker ${contended.worker} is busy with others`;
  const short = workers.find(isShort);
  return short ? `worker ${short.worker} is short of cores` : '';
}

/**
 * Not where others have the host's CPUs: laws then ask for more and more, and more would not help.
 * @param {{answers: boolean, eta: number|null, contended?: boolean}} worker
 */
export function isShort(worker) {
  return worker.answers && !worker.contended && worker.eta != null && worker.eta < 0.995;
}
