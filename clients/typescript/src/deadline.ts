/** Time limits and signals of one request. */

import { RequestTimeout } from "./errors.js";

const MAX_TIMER_MS = 2 ** 31 - 1;

/** Ends a request when its time is over, or when the signal of the caller fires. */
export class Deadline {
  readonly #controller = new AbortController();
  readonly #outer: AbortSignal | undefined;
  readonly #expire: () => void;
  #begun = false;
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** `what` names the request in `RequestTimeout`. */
  constructor(what: string, signal: AbortSignal | undefined) {
    this.#outer = signal;
    this.#expire = () => {
      this.end(new RequestTimeout(`${what}: the service did not answer in time`));
    };
    if (signal?.aborted) this.#leave();
    else signal?.addEventListener("abort", this.#leave);
  }

  /** The signal for the request. */
  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** Start the time again, with a number of seconds. */
  start(seconds: number): void {
    this.stop();
    if (!this.signal.aborted) {
      this.#timer = setTimeout(this.#expire, Math.min(seconds * 1000, MAX_TIMER_MS));
    }
  }

  /** Start the time again because the request moved, unless its answer has begun. */
  progress(seconds: number): void {
    if (!this.#begun) this.start(seconds);
  }

  /** Stop the time because the answer has begun. */
  begin(): void {
    this.#begun = true;
    this.stop();
  }

  /** Stop the time. */
  stop(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  /** End the request for a reason. */
  end(reason: unknown): void {
    this.stop();
    this.#controller.abort(reason);
  }

  /** Throw the reason if the request was ended. */
  check(): void {
    if (this.signal.aborted) throw this.signal.reason;
  }

  /** Stop the time and forget the signal of the caller. */
  close(): void {
    this.stop();
    this.#outer?.removeEventListener("abort", this.#leave);
  }

  readonly #leave = (): void => {
    this.end(this.#outer?.reason);
  };
}

/** Wait for a number of seconds. Throws the reason of the signal if it fires before. */
export function pause(seconds: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(signal.reason);
      return;
    }
    const leave = (): void => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", leave);
      resolve();
    }, seconds * 1000);
    signal?.addEventListener("abort", leave, { once: true });
  });
}
