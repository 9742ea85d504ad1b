// The address after `#`: all clients, or one of them.

import { useEffect, useState } from "preact/hooks";

const CLIENT = "#/client/";

export function hrefOf(identity: string): string {
  return CLIENT + encodeURIComponent(identity);
}

/** The identity of the client whose page is open; empty for the page of all clients. */
export function useClient(): string {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = () => setHash(location.hash);
    window.addEventListener("hashchange", changed);
    return () => window.removeEventListener("hashchange", changed);
  }, []);
  return hash.startsWith(CLIENT) ? decoded(hash.slice(CLIENT.length)) : "";
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
