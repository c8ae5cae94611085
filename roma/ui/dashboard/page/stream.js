/**
 * The line to the dispatcher: server-sent events, re-opened for as long as the page is.
 *
 * EventSource gives up for good when the answer is no stream (a restart, 503 for too many pages),
 * and never notices a dispatcher that holds the line and says nothing. So every failure closes it
 * and a new one is opened. Where only the stream is refused, the page asks for single views; so does
 * a page that nobody looks at, because a browser has six lines to a host for all its tabs together.
 */

/** Milliseconds without a view after which the dispatcher counts as lost. */
const QUIET = 3500;

/** Milliseconds of silence after which an open line is given up. */
const PATIENCE = 10_000;

const FIRST_RETRY = 500;
const LAST_RETRY = 4000;

/** Milliseconds between two single views. */
const POLL = 1000;

/** Milliseconds between two single views of a page that nobody looks at: for its title. */
const AWAY = 5000;

/**
 * @param {string} path @returns {URL} where to fetch it: never with the user and the password that
 * the page's own address may have, for which browsers refuse to fetch anything
 */
export function api(path) {
  return new URL(path, location.origin + location.pathname);
}

export class Stream {
  /**
   * @param {{history: (h: any) => void, view: (v: any) => void, state: (s: Stream) => void}} on
   */
  constructor(on) {
    this.on = on;
    /** @type {EventSource|null} */
    this.source = null;
    this.opened = 0;
    /** When the last view came, on this machine's clock; 0 if none did. */
    this.heard = 0;
    this.delay = FIRST_RETRY;
    this.due = 0;
    this.polling = false;
    /** Whether the open line has brought a view. */
    this.flowing = false;
    this.asking = false;
    /** Whether it was looked away from until now, and no view has come since. */
    this.returning = false;
    this.started = performance.now();
  }

  /** Open the line and keep it. */
  start() {
    this.started = performance.now();
    this.#open();
    setInterval(() => this.#mind(), 500);
    document.addEventListener('visibilitychange', () => {
      this.returning = !document.hidden;
      this.due = 0;
      this.#mind();
    });
  }

  /** @returns {'connecting'|'live'|'polling'|'lost'} */
  get state() {
    const quiet = performance.now() - (this.heard || this.started);
    if (quiet > QUIET + (document.hidden || this.returning ? 3 * AWAY : 0)) return 'lost';
    if (!this.heard) return 'connecting';
    return this.polling ? 'polling' : 'live';
  }

  /** Seconds since the last view. */
  get silent() {
    return (performance.now() - (this.heard || this.started)) / 1000;
  }

  #open() {
    const source = new EventSource('control/v1/stream');
    this.source = source;
    this.opened = performance.now();
    source.addEventListener('history', (event) => this.on.history(JSON.parse(event.data)));
    source.addEventListener('view', (event) => {
      this.delay = FIRST_RETRY;
      this.polling = false;
      this.flowing = true;
      this.#take(JSON.parse(event.data));
    });
    source.addEventListener('error', () => {
      if (this.source !== source) return;
      this.#close();
      void this.#ask();
    });
  }

  #close() {
    this.source?.close();
    this.source = null;
    this.flowing = false;
    this.due = performance.now() + this.delay;
    this.delay = Math.min(2 * this.delay, LAST_RETRY);
  }

  #mind() {
    const now = performance.now();
    if (document.hidden) {
      if (this.source) this.#close();
      if (now - this.heard >= AWAY) void this.#ask();
    } else {
      if (this.source && now - Math.max(this.heard, this.opened) > PATIENCE) {
        this.#close();
        void this.#ask(); // something on the way may hold a stream back, and nothing else
      }
      if (!this.source && now >= this.due) this.#open();
    }
    this.on.state(this);
  }

  /** Ask for views one by one for as long as there is no line. */
  async #ask() {
    if (this.asking) return;
    this.asking = true;
    try {
      do {
        const answer = await fetch(api('control/v1/dashboard'), { signal: AbortSignal.timeout(2000) });
        if (!answer.ok) break;
        const view = await answer.json();
        if (this.flowing) break;
        this.polling = !document.hidden;
        this.#take(view);
        await new Promise((resolve) => setTimeout(resolve, POLL));
      } while (this.polling);
    } catch {
      // Nobody answers: the line is tried again when it is due.
    } finally {
      this.asking = false;
    }
  }

  #take(view) {
    this.heard = performance.now();
    this.returning = false;
    this.on.view(view);
  }
}
