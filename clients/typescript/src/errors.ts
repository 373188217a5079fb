/**
 * Errors of the client. Each one is a `BoxError`.
 *
 * ```text
 * BoxError
 * ├── ConfigurationError      no URL or no API key, or one that cannot be valid
 * ├── ServiceError            the service refused; it has `status` and `requestId`
 * │   ├── InvalidRequest      400, 405, 406, 415, 416, 422, 426
 * │   ├── Unauthorized        401
 * │   ├── Forbidden           403
 * │   ├── NotFound            404
 * │   ├── Conflict            409
 * │   ├── PreconditionFailed  412
 * │   ├── TooLarge            413
 * │   ├── QuotaExceeded       429, with `retryAfter`
 * │   ├── StorageFull         507
 * │   └── ServiceFailed       every other status of 5xx
 * │       └── Unavailable     503, with `retryAfter`
 * ├── ConnectionLost          no connection, or one that broke before the answer was complete
 * │   └── RequestTimeout      the service was silent for too long
 * ├── ProtocolError           the answer breaks the rules of the API
 * ├── AnswerTooLarge          the answer is larger than the caller allows
 * └── CommandFailed           a command with `check` ended with another code than 0
 * ```
 *
 * If an `AbortSignal` of the caller ends a call, the call throws the reason of the signal.
 */

import type { Result } from "./events.js";

/** Base class of all errors of this library. */
export class BoxError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** The URL or the API key is missing or cannot be valid. */
export class ConfigurationError extends BoxError {}

/** The service refused the request. `requestId` identifies it in the log of the service. */
export class ServiceError extends BoxError {
  /** The HTTP status; 0: the client refused the request before it was sent. */
  readonly status: number;
  readonly requestId: string | null;

  constructor(message: string, status = 0, requestId: string | null = null) {
    super(message);
    this.status = status;
    this.requestId = requestId;
  }
}

/** The service does not accept the request; the text names the mistake. */
export class InvalidRequest extends ServiceError {}

/** The API key is missing, unknown, revoked or expired. */
export class Unauthorized extends ServiceError {}

/** The API key does not allow the request. */
export class Forbidden extends ServiceError {}

/** No such box, file, command or other object. */
export class NotFound extends ServiceError {}

/** The current state does not allow the request. */
export class Conflict extends ServiceError {}

/** The file has another entity tag than the request requires. */
export class PreconditionFailed extends ServiceError {}

/** The service does not accept input or output of this size. */
export class TooLarge extends ServiceError {}

/** A limit is reached. `retryAfter`: seconds after which a retry is useful, or null. */
export class QuotaExceeded extends ServiceError {
  retryAfter: number | null = null;
}

/** The disk of the box, or the drive, is full. */
export class StorageFull extends ServiceError {}

/** The service, or the program behind a port, failed. */
export class ServiceFailed extends ServiceError {}

/** The service cannot answer now. `retryAfter`: seconds to wait, or null. */
export class Unavailable extends ServiceFailed {
  retryAfter: number | null = null;
}

/** There is no connection, or it broke before the answer was complete. */
export class ConnectionLost extends BoxError {}

/** The service did not answer in time. */
export class RequestTimeout extends ConnectionLost {}

/** The answer breaks the rules of the API. The URL may be that of another service. */
export class ProtocolError extends BoxError {}

/** The answer is larger than the limit of the caller. */
export class AnswerTooLarge extends BoxError {}

/** A command ended with another code than 0. `result` has the code and the output. */
export class CommandFailed extends BoxError {
  readonly result: Result;

  constructor(message: string, result: Result) {
    super(message);
    this.result = result;
  }
}

type ServiceErrorClass = new (
  message: string,
  status: number,
  requestId: string | null,
) => ServiceError;

const BY_STATUS: Readonly<Record<number, ServiceErrorClass>> = {
  401: Unauthorized,
  403: Forbidden,
  404: NotFound,
  409: Conflict,
  412: PreconditionFailed,
  413: TooLarge,
  429: QuotaExceeded,
  503: Unavailable,
  507: StorageFull,
};

/** Return the class of a status of 4xx or 5xx. */
export function classOf(status: number): ServiceErrorClass {
  return BY_STATUS[status] ?? (status < 500 ? InvalidRequest : ServiceFailed);
}
