/**
 * What was decided for one model: fetched once for five minutes, then every second for what is new.
 *
 * A decision is told again a second later, when the kernel has said what became of it, so it is
 * replaced. Requests are numbered anew by every dispatcher; number and time together name a refusal.
 */

import { words } from './format.js';
import { api } from './stream.js';

const FIRST = 300;
const PERIOD = 1000;

/** Milliseconds after which everything is asked for again while a worker is silent. */
const AGAIN = 15_000;

/** Seconds asked for beyond those since the last answer. */
const OVERLAP = 4;

/** Seconds that are remembered. */
const KEPT = 900;

/**
 * @typedef {{key: string, at: number, decision: any, before: number|null}} Decided
 * @typedef {{key: string, at: number, refusals: any[]}} Refused of one second, for one reason
 */

export class DecisionFeed {
  /** @param {string} model @param {(feed: DecisionFeed) => void} onNews */
  constructor(model, onNews) {
    this.model = model;
    this.onNews = onNews;
    /** @type {Map<string, any>} */
    this.decisions = new Map();
    /** @type {Map<string, any>} */
    this.refusals = new Map();
    /** @type {Record<string, string>} workers whose decisions are missing, and why */
    this.silent = {};
    /** When an answer came, and when one that covered everything was asked for. */
    this.heard = 0;
    this.asked = 0;
    this.failure = '';
    this.stopped = false;
    void this.#run();
  }

  stop() {
    this.stopped = true;
  }

  async #run() {
    while (!this.stopped) {
      if (!document.hidden) await this.#ask();
      await new Promise((resolve) => setTimeout(resolve, PERIOD));
    }
  }

  async #ask() {
    const now = performance.now();
    const passed = Math.ceil((now - this.heard) / 1000) + OVERLAP;
    // What a silent worker decided meanwhile is asked for again, but not every second.
    const missing = Object.keys(this.silent).length > 0 && now - this.asked > AGAIN;
    const seconds = Math.min(KEPT, this.heard ? Math.max(passed, missing ? FIRST : 0) : FIRST);
    if (seconds >= FIRST) this.asked = now;
    const query = new URLSearchParams({ model: this.model, seconds: String(seconds) });
    try {
      const answer = await fetch(api(`control/v1/decisions?${query}`), { signal: AbortSignal.timeout(5000) });
      const told = await answer.json();
      if (!answer.ok) throw new Error(told.error);
      if (this.stopped) return;
      this.#take(told);
      this.heard = performance.now();
      this.failure = '';
    } catch (error) {
      const unheard = error instanceof TypeError || error.name === 'TimeoutError';
      this.failure = unheard ? 'the dispatcher does not answer' : String(error.message || error);
    }
    if (!this.stopped) this.onNews(this);
  }

  #take(told) {
    this.silent = told.silent;
    for (const d of told.decisions) this.decisions.set(`${d.worker} ${d.executable} ${d.time}`, d);
    for (const r of told.refusals[this.model] ?? []) this.#refused(r);
    const since = told.at - KEPT;
    for (const [key, d] of this.decisions) if (d.at < since) this.decisions.delete(key);
    for (const [key, r] of this.refusals) if (r.at < since) this.refusals.delete(key);
  }

  #refused(refusal) {
    // Wall-clock times of the same refusal differ by the clock's own corrections.
    const second = Math.floor(refusal.at);
    const known = [second - 1, second, second + 1].some((s) => {
      const other = this.refusals.get(`${refusal.request} ${s}`);
      return other && Math.abs(other.at - refusal.at) < 0.5;
    });
    if (!known) this.refusals.set(`${refusal.request} ${second}`, refusal);
  }

  /** @returns {(Decided|Refused)[]} newest first */
  get moments() {
    const applied = new Map();
    const found = [...this.decisions.entries()]
      .sort(([, a], [, b]) => a.at - b.at)
      .map(([key, decision]) => {
        const before = decision.measurement?.applied ?? applied.get(decision.executable) ?? null;
        applied.set(decision.executable, decision.applied);
        return { key, at: decision.at, decision, before };
      });
    return [...found, ...this.#groups()].sort((a, b) => b.at - a.at);
  }

  /** An overload refuses many in a second, all for one reason. */
  #groups() {
    const groups = new Map();
    for (const refusal of this.refusals.values()) {
      const key = `${refusal.reason} ${Math.floor(refusal.at)}`;
      let group = groups.get(key);
      if (!group) groups.set(key, (group = { key, at: refusal.at, refusals: [] }));
      group.refusals.push(refusal);
      group.at = Math.max(group.at, refusal.at);
    }
    return groups.values();
  }

  /** @returns {any[]} the last decision of each executable */
  get latest() {
    const found = new Map();
    for (const d of this.decisions.values()) {
      if (!(found.get(d.executable)?.at >= d.at)) found.set(d.executable, d);
    }
    return [...found.values()];
  }
}

/** What a law calls its addends, as supervisor/decision_text.py does. */
const TERMS = {
  applied: 'what it has', clip: 'its bounds', decay: 'idleness', initial: 'its start value',
  max: 'all there is', min: 'the least', minimum: 'the least',
};

/** @param {string} name */
export function term(name) {
  return TERMS[name] ?? words(name);
}
