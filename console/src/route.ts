// The address after `#`: all clients, one of them, the newest requests, those that failed, one of them, or a part of the first page; and
// of which model.

import { useEffect, useState } from "preact/hooks";

const CLIENT = "#/client/";
const REQUESTS = "#/requests";
const FAILED = "#/failed";
const PART = "#/at/";
const MODEL = "?model=";

export interface Place {
  page: "all" | "client" | "requests" | "request";
  /** The identity of a client, the id of a request, `failed` of requests, or the part of the page of all clients; empty: none. */
  of: string;
  /** The model that is shown; empty: all. */
  model: string;
}

/** The address of a page of the model that is shown. */
function here(path: string): string {
  return withModel(path, placeOf(location.hash).model);
}

function withModel(path: string, model: string): string {
  return model ? path + MODEL + encodeURIComponent(model) : path;
}

export function hrefOf(identity: string): string {
  return here(CLIENT + encodeURIComponent(identity));
}

export function hrefOfRequest(id: string): string {
  return here(`${REQUESTS}/${encodeURIComponent(id)}`);
}

export function hrefOfRequests(): string {
  return here(REQUESTS);
}

export function hrefOfFailed(): string {
  return here(FAILED);
}

export function hrefOfPart(id: string): string {
  return here(PART + id);
}

export function hrefOfClients(): string {
  return here("#/");
}

/** The page that is open, of another model; empty: of all. */
export function hrefOfModel(model: string): string {
  const [path] = location.hash.split(MODEL, 1);
  return withModel(path || "#/", model);
}

export function usePlace(): Place {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = () => setHash(location.hash);
    window.addEventListener("hashchange", changed);
    return () => window.removeEventListener("hashchange", changed);
  }, []);
  return placeOf(hash);
}

function placeOf(hash: string): Place {
  const at = hash.indexOf(MODEL);
  const path = at < 0 ? hash : hash.slice(0, at);
  const model = at < 0 ? "" : decoded(hash.slice(at + MODEL.length));
  if (path.startsWith(CLIENT)) return { page: "client", of: decoded(path.slice(CLIENT.length)), model };
  if (path === REQUESTS) return { page: "requests", of: "", model };
  if (path === FAILED) return { page: "requests", of: "failed", model };
  if (path.startsWith(`${REQUESTS}/`)) return { page: "request", of: decoded(path.slice(REQUESTS.length + 1)), model };
  return { page: "all", of: path.startsWith(PART) ? path.slice(PART.length) : "", model };
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
