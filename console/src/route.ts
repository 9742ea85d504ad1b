// The address after `#`: all clients, one of them, the newest requests, one of them, or a part of the first page.

import { useEffect, useState } from "preact/hooks";

const CLIENT = "#/client/";
const REQUESTS = "#/requests";
const PART = "#/at/";

export interface Place {
  page: "all" | "client" | "requests" | "request";
  /** The identity of a client, the id of a request, or the part of the page of all clients; empty: none. */
  of: string;
}

export function hrefOf(identity: string): string {
  return CLIENT + encodeURIComponent(identity);
}

export function hrefOfRequest(id: string): string {
  return `${REQUESTS}/${encodeURIComponent(id)}`;
}

export function hrefOfPart(id: string): string {
  return PART + id;
}

export const ALL_REQUESTS = REQUESTS;

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
  if (hash.startsWith(CLIENT)) return { page: "client", of: decoded(hash.slice(CLIENT.length)) };
  if (hash === REQUESTS) return { page: "requests", of: "" };
  if (hash.startsWith(`${REQUESTS}/`)) return { page: "request", of: decoded(hash.slice(REQUESTS.length + 1)) };
  return { page: "all", of: hash.startsWith(PART) ? hash.slice(PART.length) : "" };
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
