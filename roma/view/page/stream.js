/**
 * The line to the dispatcher: server-sent events, re-opened for as long as the page is.
 *
 * EventSource gives up for good when the answer is no stream (a restart, 503 for too many pages),
 * and never notices a dispatcher that holds the line and says nothing. So every failure closes it
 * and a new one is opened. Where only the stream is refused, the page asks for single views.
 */

/** Milliseconds without a view after which the dispatcher counts as lost. */
const QUIET = 3500;

/** Milliseconds of silence after which an open line is given up. */
const PATIENCE = 10_000;

const FIRST_RETRY = 500;
const LAST_RETRY = 4000;

/** Milliseconds between two single views. */
const POLL = 1000;

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
    this.started = Date.now();
  }

  /** Open the line and keep it. */
  start() {
    this.started = Date.now();
    this.#open();
    setInterval(() => this.#mind(), 500);
  }

  /** @returns {'connecting'|'live'|'polling'|'lost'} */
  get state() {
    const quiet = Date.now() - (this.heard || this.started);
    if (quiet > QUIET) return 'lost';
    if (!this.heard) return 'connecting';
    return this.polling ? 'polling' : 'live';
  }

  /** Seconds since the last view. */
  get silent() {
    return (Date.now() - (this.heard || this.started)) / 1000;
  }

  #open() {
    const source = new EventSource('control/v1/stream');
    this.source = source;
    this.opened = Date.now();
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
    this.due = Date.now() + this.delay;
    this.delay = Math.min(2 * this.delay, LAST_RETRY);
  }

  #mind() {
    const now = Date.now();
    if (this.source && now - Math.max(this.heard, this.opened) > PATIENCE) this.#close();
    if (!this.source && now >= this.due) this.#open();
    this.on.state(this);
  }

  /** Ask for views one by one for as long as there is no line. */
  async #ask() {
    if (this.asking) return;
    this.asking = true;
    try {
      do {
        const answer = await fetch('control/v1/view', { signal: AbortSignal.timeout(2000) });
        if (!answer.ok) break;
        const view = await answer.json();
        if (this.flowing) break;
        this.polling = true;
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
    this.heard = Date.now();
    this.on.view(view);
  }
}
