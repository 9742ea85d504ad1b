// Reads the router's answers, again and again while the page is visible.

import { useEffect, useState } from "preact/hooks";

const TIMEOUT_MS = 10_000;

/** The router refused the token or the key. */
export class Refused extends Error {}
/** The router has no such model, or does not show it to this key. */
export class Unknown extends Error {}

export interface Reading<T> {
  /** The last answer; undefined before the first one. */
  value?: T;
  /** Why the last attempt failed; empty if it succeeded. */
  fault: string;
  /** Whether the router refused the token or the key. */
  refused: boolean;
  /** Whether the address names what the router does not have. */
  unknown: boolean;
  /** Milliseconds since 1970 of the last answer. */
  at: number;
}

const NOTHING = { fault: "", refused: false, unknown: false, at: 0 };

/** Read `path` every `everyMs`, nothing while it is empty. A change of any argument starts again; `generation` has no other use. */
export function useReading<T>(
  path: string,
  everyMs: number,
  key: string,
  generation: string = "",
): Reading<T> {
  const of = `${path} ${generation} ${key}`;
  const [reading, setReading] = useState<Reading<T> & { of: string }>({ ...NOTHING, of });
  useEffect(() => {
    if (!path) return;
    const stop = new AbortController();
    let timer = 0;
    let busy = false;
    async function next(): Promise<void> {
      if (busy || document.hidden) return;
      busy = true;
      window.clearTimeout(timer);
      const signal = AbortSignal.any([stop.signal, AbortSignal.timeout(TIMEOUT_MS)]);
      let again = true;
      try {
        const value = await read<T>(path, key, signal);
        if (!stop.signal.aborted) setReading({ ...NOTHING, of, value, at: Date.now() });
      } catch (error) {
        if (stop.signal.aborted) return;
        const refused = error instanceof Refused;
        again = !refused;
        const fault = error instanceof Error ? error.message : String(error);
        const unknown = error instanceof Unknown;
        setReading((before) => ({ ...(before.of === of ? before : NOTHING), of, fault, refused, unknown }));
      } finally {
        busy = false;
      }
      if (again && !stop.signal.aborted) timer = window.setTimeout(next, everyMs);
    }
    const visible = () => void next();
    document.addEventListener("visibilitychange", visible);
    void next();
    return () => {
      stop.abort();
      window.clearTimeout(timer);
      document.removeEventListener("visibilitychange", visible);
    };
  }, [path, everyMs, key, generation]);
  return reading.of === of ? reading : NOTHING;
}

async function read<T>(path: string, key: string, signal: AbortSignal): Promise<T> {
  const headers: Record<string, string> = key ? { Authorization: `Bearer ${key}` } : {};
  const response = await fetch(path, { headers, signal, cache: "no-store", credentials: "omit" });
  if (response.status === 401) throw new Refused();
  if (response.status === 404) throw new Unknown(await message(response));
  if (!response.ok) throw new Error((await message(response)) || `status ${response.status}`);
  return (await response.json()) as T;
}

async function message(response: Response): Promise<string> {
  try {
    const body = (await response.json()) as { error?: { message?: string } };
    return body.error?.message ?? "";
  } catch {
    return "";
  }
}
