/** The whole deployment in one line: requests, what was late of them, cores, and cores saved. */

import { el, put, say } from './dom.js';
import { cores, percent, rate } from './format.js';

/** @type {[string, string, (view: any) => string][]} name, title, text */
const FIGURES = [
  ['Requests', 'Arrivals of all models, per second', (v) => `${rate(sum(v.models, 'arrivals'))} /s`],
  ['Late, 1 min', 'Late, refused or failed, of all requests of the last minute', (v) => percent(late(v.models))],
  ['Cores applied', 'What the quotas grant now, of what the workers have', (v) => `${cores(sum(v.workers, 'applied'))} of ${cores(sum(v.workers, 'capacity'))}`],
  ['Cores saved', 'Cores of the workers that no quota takes now', (v) => cores(Math.max(0, sum(v.workers, 'capacity') - sum(v.workers, 'applied')))],
];

/** @param {any[]} rows @param {string} key */
const sum = (rows, key) => rows.reduce((total, row) => total + (row[key] ?? 0), 0);

/** @param {any[]} models @returns {number|null} each model by how many of its requests ended */
function late(models) {
  const ended = sum(models, 'ended_lately');
  return ended ? models.reduce((total, m) => total + (m.late_share ?? 0) * m.ended_lately, 0) / ended : null;
}

export class Totals {
  /** @param {HTMLElement} place */
  constructor(place) {
    this.values = FIGURES.map(([name, title, text]) => {
      const value = el('dd');
      place.append(el('div', { title }, el('dt', {}, name), value));
      return { value, text };
    });
  }

  /** @param {any} view */
  update(view) {
    for (const { value, text } of this.values) say(value, text(view));
  }
}

/** @param {HTMLElement} place @param {Record<string, string>} links by name */
export function link(place, links) {
  const shown = JSON.stringify(links);
  if (place.dataset.links === shown) return;
  put(place, 'data-links', shown);
  place.replaceChildren(...Object.entries(links).map(([name, href]) => el('a', { href, rel: 'noopener' }, name)));
}
