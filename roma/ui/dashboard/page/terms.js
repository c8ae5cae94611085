/** What a law's demand is the sum of: one signed bar per term, from a common zero. */

import { el, svg } from './dom.js';
import { cores } from './format.js';
import { term } from './decision-feed.js';

const signed = (n) => (n < 0 ? '−' : '+') + cores(Math.abs(n), 3);

/** @param {{cores: number|null, why: string, terms: Record<string, number>}} demand */
export function terms(demand) {
  const parts = Object.entries(demand.terms ?? {});
  if (!parts.length) return el('p', {}, demand.cores == null ? `held: ${demand.why}` : demand.why);
  const values = [...parts.map(([, value]) => value), demand.cores ?? 0];
  const least = Math.min(0, ...values);
  const span = Math.max(0, ...values) - least || 1;
  const bar = (value, name) => {
    const from = (Math.min(0, value) - least) / span;
    return svg(
      'svg.term', { viewBox: '0 0 100 10', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
      svg(`rect.${name}`, { x: 100 * from, y: 2, width: Math.max(0.4, (100 * Math.abs(value)) / span), height: 6 }),
      svg('rect.zero', { x: (100 * -least) / span - 0.2, y: 0, width: 0.5, height: 10 }),
    );
  };
  return el(
    'ul.terms', {},
    ...parts.map(([name, value]) => el(
      'li', {}, el('span', {}, term(name)), bar(value, value < 0 ? 'minus' : 'plus'), el('b', {}, signed(value)),
    )),
    el('li.sum', {}, el('span', {}, 'demand'), bar(demand.cores ?? 0, 'all'), el('b', {}, cores(demand.cores, 3))),
  );
}
