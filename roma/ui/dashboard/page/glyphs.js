/** The small pictures of a row: response time against its promise, its last minutes, and cores. */

import { put, svg } from './dom.js';
import { duration } from './format.js';
import { area, line, ticks } from './lines.js';

/** The SLA stands at this share of the bar's length: twice as late is still on it. */
const SLA_AT = 50;

const full = (classes, width, height) => svg(classes, {
  viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', 'aria-hidden': 'true',
});

/** Response time as a bar, the set point as a tick, the SLA as a line. */
export class Bullet {
  constructor() {
    this.element = full('svg.bullet', 100, 12);
    this.oldest = svg('rect.oldest', { x: 0, y: 4.5, height: 3 });
    this.bar = svg('rect.bar', { x: 0, y: 3, height: 6 });
    this.aim = svg('rect.aim', { y: 1.5, width: 0.8, height: 9 });
    this.element.append(
      svg('rect.kept', { x: 0, y: 3, width: SLA_AT, height: 6 }),
      svg('rect.broken', { x: SLA_AT, y: 3, width: 100 - SLA_AT, height: 6 }),
      this.oldest,
      this.bar,
      this.aim,
      svg('rect.sla', { x: SLA_AT - 0.6, y: 0, width: 1.2, height: 12 }),
    );
  }

  /** @param {any} row */
  update(row) {
    const at = (seconds) => Math.round(Math.min(100, (SLA_AT * seconds) / row.sla) * 10) / 10;
    const time = row.response_time ?? 0;
    put(this.element, 'data-state', time > row.sla ? 'late' : time > row.set_point ? 'tight' : null);
    put(this.bar, 'width', at(time));
    put(this.oldest, 'width', at(row.oldest_age));
    put(this.aim, 'x', at(row.set_point) - 0.4);
  }
}

/** The response time of the last 15 minutes, what is above the SLA, and when promises broke. */
export class Spark {
  constructor() {
    this.element = full('svg.spark', 180, 34);
    this.above = svg('path.above');
    this.line = svg('path.line');
    this.broken = svg('path.ticks');
    this.sla = svg('path.sla');
    this.element.append(this.above, this.sla, this.line, this.broken);
  }

  /**
   * @param {any} row @param {import('./series.js').Series} series
   * @param {{now: number, span: number}} time
   * @returns {string} what can be said of the picture
   */
  update(row, series, { now, span }) {
    const { points, every } = series;
    let most = 0;
    for (const p of points) if (p.response_time > most) most = p.response_time;
    const highest = most;
    most = Math.min(Math.max(most, 1.3 * row.sla), 3 * row.sla); // beyond, the shape of everything else would be lost
    // Whole points only: the picture moves when there is something new in it.
    const end = Math.ceil(now / every) * every;
    const scale = {
      x: (at) => ((at - end + span) * 180) / span,
      y: (v) => 31 - (Math.min(v, most) * 29) / most,
      value: (p) => p.response_time,
      gap: 2.5 * every,
    };
    const sla = scale.y(row.sla);
    put(this.sla, 'd', `M0 ${sla.toFixed(1)}H180`);
    put(this.line, 'd', line(points, scale));
    put(this.above, 'd', area(points, { ...scale, y: (v) => Math.min(sla, scale.y(v)) }, sla.toFixed(1)));
    put(this.broken, 'd', ticks(points, scale.x, (p) => p.broken > 0.02 * (p.ended || 1), 34, 4));
    return `highest ${duration(highest)}`;
  }
}

/** Cores: what is applied as a bar, what is used in it, and what is demanded beyond it. */
export class Cores {
  constructor() {
    this.element = full('svg.cores', 100, 12);
    this.wanted = svg('rect.wanted', { x: 0, y: 4, height: 4 });
    this.applied = svg('rect.applied', { x: 0, y: 2, height: 8 });
    this.used = svg('rect.used', { x: 0, y: 4, height: 4 });
    this.tick = svg('rect.demand', { y: 0, width: 1, height: 12 });
    this.element.append(
      svg('rect.track', { x: 0, y: 2, width: 100, height: 8 }),
      this.wanted, this.applied, this.used, this.tick,
    );
  }

  /**
   * @param {{demanded: number|null, applied: number|null, used: number|null}} cores
   * @param {number} most cores at the right end
   */
  update({ demanded, applied, used }, most) {
    const at = (n) => Math.round(Math.min(100, (100 * (n ?? 0)) / most) * 10) / 10;
    put(this.wanted, 'width', at(demanded));
    put(this.applied, 'width', at(applied));
    put(this.used, 'width', at(used));
    put(this.tick, 'x', demanded == null ? -5 : Math.min(99, at(demanded)));
  }
}
