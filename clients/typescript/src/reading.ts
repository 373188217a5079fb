/** Checks of JSON values at run time. A value of a wrong form throws `ProtocolError`. */

import { ProtocolError } from "./errors.js";

/** Turns a JSON value into a value of the client. `place` names it in errors. */
export interface Reader<T> {
  (value: unknown, place: string): T;
  /** The type in the OpenAPI document, for the comparison of the two. */
  readonly kind: string;
  /** The name of the member in JSON, if it differs from the name in the client. */
  readonly member?: string;
  /** The value if the member is missing. */
  readonly missing?: () => T;
}

/** One reader for each member of a value. */
export type Shape<T> = { readonly [Name in keyof T]-?: Reader<T[Name]> };

type Draft<T> = (value: unknown, place: string) => T;

function reader<T>(kind: string, read: Draft<T>, more: Partial<Reader<T>> = {}): Reader<T> {
  return Object.assign((value: unknown, place: string) => read(value, place), { ...more, kind });
}

function wrong(place: string): ProtocolError {
  return new ProtocolError(`${place} has a value of the wrong type`);
}

/** A text. */
export const text = reader<string>("string", (value, place) => {
  if (typeof value !== "string") throw wrong(place);
  return value;
});

/** A number that is finite. */
export const number = reader<number>("number", (value, place) => {
  if (typeof value !== "number" || !Number.isFinite(value)) throw wrong(place);
  return value;
});

/** A number without a fraction, which the client can represent exactly. */
export const integer = reader<number>("integer", (value, place) => {
  if (typeof value !== "number" || !Number.isSafeInteger(value)) throw wrong(place);
  return value;
});

/** True or false. */
export const flag = reader<boolean>("boolean", (value, place) => {
  if (typeof value !== "boolean") throw wrong(place);
  return value;
});

const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$/;

/** A time with a time zone. */
export const time = reader<Date>("string", (value, place) => {
  if (typeof value !== "string") throw wrong(place);
  const moment = new Date(TIME.test(value) ? value : NaN);
  if (Number.isNaN(moment.getTime())) throw new ProtocolError(`${place} is not a time`);
  return moment;
});

/** A value, or null. */
export function orNull<T>(inner: Reader<T>): Reader<T | null> {
  return reader<T | null>(
    `${inner.kind}|null`,
    (value, place) => (value === null ? null : inner(value, place)),
    { missing: () => null },
  );
}

/** A value that an older service may omit. */
export function or<T>(inner: Reader<T>, missing: T): Reader<T> {
  return reader<T>(inner.kind, inner, { missing: () => missing });
}

/** A value whose member has another name in JSON. */
export function named<T>(member: string, inner: Reader<T>): Reader<T> {
  const { missing } = inner;
  return reader<T>(inner.kind, inner, missing === undefined ? { member } : { member, missing });
}

/** A list. */
export function list<T>(inner: Reader<T>): Reader<T[]> {
  return reader<T[]>(`[${inner.kind}]`, (value, place) => {
    if (!Array.isArray(value)) throw wrong(place);
    return value.map((one, index) => inner(one, `${place}[${index}]`));
  });
}

/** An object with one count for each name. */
export const counts = reader<Record<string, number>>("object", (value, place) => {
  const members = Object.entries(record(value, place));
  return Object.fromEntries(members.map(([name, one]) => [name, integer(one, `${place}.${name}`)]));
});

/** An object whose members have readers. Members without a reader are ignored. */
export function model<T extends object>(
  name: string,
  shape: Shape<T>,
): Reader<T> & { readonly shape: Shape<T> } {
  const readers = Object.entries(shape) as [string, Reader<unknown>][];
  const read = reader<T>(name, (value, place) => {
    const members = record(value, place);
    const result: Record<string, unknown> = {};
    for (const [key, one] of readers) {
      const member = one.member ?? key;
      if (Object.hasOwn(members, member)) result[key] = one(members[member], `${place}.${member}`);
      else if (one.missing !== undefined) result[key] = one.missing();
      else throw new ProtocolError(`the answer has no ${place}.${member}`);
    }
    return result as T;
  });
  return Object.assign(read, { shape });
}

/** Return a JSON value that must be an object. */
export function record(value: unknown, place: string): Record<string, unknown> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new ProtocolError(`${place} is not a JSON object`);
  }
  return value as Record<string, unknown>;
}
