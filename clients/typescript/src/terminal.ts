/** Terminals: a login shell in a box, over a WebSocket. */

import { inNode, type Settings } from "./config.js";
import { Deadline } from "./deadline.js";
import { ConfigurationError, ConnectionLost, ProtocolError, Unauthorized } from "./errors.js";
import { targetOf, type Request } from "./protocol.js";

/** Largest message that the service accepts, in bytes. */
const MAX_SEND = 64 * 1024;
/** Output in bytes that may wait for `read`. */
const MAX_WAITING = 16 * 1024 * 1024;
const EXIT = /^exit (\d{1,3})$/;
const NORMAL = 1000;
const GOING_AWAY = 1001;
const REVOKED = 1008;
const OPEN = 1;

/** What the client uses of a WebSocket. */
export interface WebSocketLike {
  binaryType: string;
  readonly readyState: number;
  send(data: string | Uint8Array): void;
  close(): void;
  // The events of browsers and of `ws` have different types.
  addEventListener(type: string, listener: (event: any) => void): void;
}

/**
 * A class of WebSockets: that of the browser or of Node.js 22, or that of the package `ws`.
 *
 * A class that you give is called as `new WebSocket(url, [], { headers })`.
 */
export type WebSocketClass = new (...parameters: never[]) => WebSocketLike;

interface CloseLike {
  code: number;
  reason: string;
}

/** A terminal in a box. `exitCode` is null until the shell has ended. */
export class Terminal implements AsyncIterable<Uint8Array> {
  /** The exit code of the shell; null: it has not ended. */
  exitCode: number | null = null;
  readonly #socket: WebSocketLike;
  readonly #chunks: Uint8Array[] = [];
  #waiting = 0;
  #end: { error: unknown } | null = null;
  #wake: (() => void) | null = null;

  constructor(socket: WebSocketLike) {
    this.#socket = socket;
    socket.addEventListener("message", (event: { data: unknown }) => this.#receive(event.data));
    socket.addEventListener("close", (event: CloseLike) => this.#finish(event));
  }

  /**
   * Return the next output; null: the shell has ended.
   *
   * Throws `ConnectionLost` if the terminal ended in another way. Only one `read` may wait.
   */
  async read(): Promise<Uint8Array | null> {
    for (;;) {
      const chunk = this.#chunks.shift();
      if (chunk !== undefined) {
        this.#waiting -= chunk.length;
        return chunk;
      }
      if (this.#end !== null) {
        if (this.#end.error !== null) throw this.#end.error;
        return null;
      }
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }

  /** Yield the output until the shell ends. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array, void, undefined> {
    for (let chunk = await this.read(); chunk !== null; chunk = await this.read()) yield chunk;
  }

  /** Send keystrokes. Throws `ConnectionLost` if the terminal has ended. */
  write(data: string | Uint8Array): void {
    const bytes = typeof data === "string" ? new TextEncoder().encode(data) : data;
    for (let start = 0; start < bytes.length; start += MAX_SEND) {
      this.#send(bytes.subarray(start, start + MAX_SEND));
    }
  }

  /** Set the size of the terminal in characters. */
  resize(cols: number, rows: number): void {
    this.#send(JSON.stringify({ resize: { cols, rows } }));
  }

  /** Close the terminal; the shell receives SIGHUP. */
  close(): void {
    this.#stop(new ConnectionLost("the terminal was closed"));
    this.#socket.close();
  }

  #send(data: string | Uint8Array): void {
    if (this.#socket.readyState !== OPEN) throw new ConnectionLost("the terminal has ended");
    this.#socket.send(data);
  }

  #receive(data: unknown): void {
    if (!(data instanceof ArrayBuffer) || data.byteLength === 0 || this.#end !== null) return;
    this.#chunks.push(new Uint8Array(data));
    this.#waiting += data.byteLength;
    if (this.#waiting > MAX_WAITING) {
      this.#stop(new ConnectionLost(`more than ${MAX_WAITING} bytes of output wait for read`));
      this.#socket.close();
    }
    this.#awake();
  }

  #finish(event: CloseLike): void {
    const match = EXIT.exec(event.reason);
    if (event.code === NORMAL && match !== null && this.#end === null) {
      this.exitCode = Number(match[1]);
      this.#stop(null);
    } else if (event.code === REVOKED) {
      this.#stop(new Unauthorized(`the terminal ended: ${event.reason || "the key was revoked"}`, 401));
    } else if (event.code === GOING_AWAY) {
      this.#stop(new ConnectionLost(`the box stopped: ${event.reason || "it was removed"}`));
    } else {
      this.#stop(new ConnectionLost(`the terminal ended: ${event.reason || String(event.code)}`));
    }
  }

  #stop(error: unknown): void {
    this.#end ??= { error };
    this.#awake();
  }

  #awake(): void {
    this.#wake?.();
    this.#wake = null;
  }
}

/** Open a terminal. Throws `ConnectionLost` if the service refuses it or does not answer. */
export function openTerminal(
  settings: Settings,
  request: Request,
  given: WebSocketClass | undefined,
  seconds: number,
): Promise<Terminal> {
  return new Promise((resolve, reject) => {
    const deadline = new Deadline(`GET ${request.path}`, request.signal);
    deadline.check();
    const socket = create(settings, request, given);
    socket.binaryType = "arraybuffer";
    const terminal = new Terminal(socket);
    const leave = (error: unknown): void => {
      deadline.close();
      reject(error);
    };
    socket.addEventListener("open", () => {
      deadline.close();
      resolve(terminal);
    });
    socket.addEventListener("error", (event: { message?: string }) => {
      const detail = event.message ? `: ${event.message}` : "";
      leave(new ConnectionLost(`the service did not open a terminal${detail}`));
    });
    socket.addEventListener("close", () => {
      leave(new ConnectionLost("the service did not open a terminal"));
    });
    deadline.signal.addEventListener("abort", () => {
      leave(deadline.signal.reason);
      socket.close();
    });
    deadline.start(seconds);
  });
}

function create(
  settings: Settings,
  request: Request,
  given: WebSocketClass | undefined,
): WebSocketLike {
  type AnyClass = new (...parameters: unknown[]) => WebSocketLike;
  const url = settings.url.replace(/^http/, "ws") + targetOf(request);
  const headers = { Authorization: `Bearer ${settings.key}` };
  const own = (globalThis as { WebSocket?: unknown }).WebSocket as AnyClass | undefined;
  try {
    if (given !== undefined) return new (given as unknown as AnyClass)(url, [], { headers });
    if (own !== undefined && inNode()) return new own(url, { headers });
    if (own !== undefined) {
      // A browser cannot set headers of a WebSocket.
      const params = { ...request.params, key: settings.key };
      return new own(settings.url.replace(/^http/, "ws") + targetOf({ ...request, params }));
    }
  } catch {
    // The error of the browser contains the URL, and the URL contains the key.
    throw new ProtocolError("cannot create a WebSocket for the terminal");
  }
  throw new ConfigurationError(
    "this runtime has no WebSocket; give a class to the client, for example that of the package ws",
  );
}
