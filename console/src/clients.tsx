// The table of all clients: sorted, filtered, a page at a time.

import type { ComponentChildren } from "preact";
import { useMemo, useRef, useState } from "preact/hooks";
import { count, percent, ratio, seconds } from "./format";
import { Scroll } from "./parts";
import { hrefOf } from "./route";
import { type ClientNow, nameOf } from "./state";

const PAGE = 50;
/** Rows keep their places for so long, although the figures change. */
const ORDER_MS = 10_000;

interface ColumnOf {
  title: string;
  /** Sorts by it: text from A, numbers from the largest. */
  by: (client: ClientNow) => string | number;
  /** Numbers from the smallest. */
  ascends?: boolean;
  cell: (client: ClientNow) => ComponentChildren;
  /** Shown on wide screens only. */
  wide?: boolean;
}

const COLUMNS: ColumnOf[] = [
  {
    title: "Client",
    by: nameOf,
    cell: (client) => (
      <>
        <a href={hrefOf(client.identity)}>{nameOf(client)}</a>
        <span class="words">{client.words}</span>
      </>
    ),
  },
  { title: "Weight", by: (client) => client.weight, cell: (client) => client.weight, wide: true },
  { title: "Share, owed", by: (client) => client.share ?? -1, cell: (client) => <Share client={client} /> },
  {
    title: "Given over owed",
    by: (client) => client.given_over_owed ?? Number.MAX_VALUE,
    ascends: true,
    cell: (client) => percent(client.given_over_owed),
    wide: true,
  },
  { title: "Service/s", by: (client) => client.service_per_s, cell: (client) => count(client.service_per_s) },
  { title: "Output tokens/s", by: (client) => client.output_tokens_per_s, cell: (client) => count(client.output_tokens_per_s), wide: true },
  { title: "TTFT", by: (client) => client.ttft_s ?? -1, cell: (client) => seconds(client.ttft_s) },
  { title: "Waiting", by: (client) => client.waiting, cell: (client) => count(client.waiting) },
  { title: "Running", by: (client) => client.running, cell: (client) => count(client.running), wide: true },
  { title: "Hit rate", by: (client) => client.hit_rate ?? -1, cell: (client) => percent(client.hit_rate), wide: true },
  { title: "QoE", by: (client) => client.qoe ?? -1, cell: (client) => ratio(client.qoe), wide: true },
  { title: "Errors", by: (client) => client.errors, cell: (client) => count(client.errors), wide: true },
];

/** The part of the service as a bar, with a mark at what the client was owed. */
function Share({ client }: { client: ClientNow }) {
  const owed = client.owed === null ? "" : `, ${percent(client.owed)}`;
  return (
    <span class="share">
      <span class="bar" aria-hidden="true">
        <span class={client.fair ? "fill" : "fill short"} style={{ width: `${100 * (client.share ?? 0)}%` }} />
        {client.owed !== null && <span class="mark" style={{ left: `${100 * client.owed}%` }} />}
      </span>
      <span class="parts">
        {percent(client.share)}
        {owed}
      </span>
    </span>
  );
}

export function Clients({ clients }: { clients: ClientNow[] }) {
  const [column, setColumn] = useState(2);
  const [reversed, setReversed] = useState(false);
  const [wanted, setWanted] = useState("");
  const [page, setPage] = useState(0);
  const found = useOrder(clients, column, reversed, wanted);
  const pages = Math.max(1, Math.ceil(found.length / PAGE));
  const shown = Math.min(page, pages - 1);

  function sortBy(at: number): void {
    setReversed(at === column && !reversed);
    setColumn(at);
    setPage(0);
  }

  return (
    <section aria-labelledby="clients">
      <div class="heading">
        <h2 id="clients">Clients</h2>
        <label>
          Find{" "}
          <input
            type="search"
            value={wanted}
            onInput={(event) => {
              setWanted(event.currentTarget.value);
              setPage(0);
            }}
          />
        </label>
      </div>
      <Scroll label="Table of clients">
        <table>
          <thead>
            <tr>
              {COLUMNS.map(({ title, wide }, at) => (
                <th
                  key={title}
                  scope="col"
                  class={wide ? "wide" : ""}
                  aria-sort={at !== column ? "none" : descends(at) !== reversed ? "descending" : "ascending"}
                >
                  <button type="button" onClick={() => sortBy(at)}>
                    {title}
                    <span aria-hidden="true">{at !== column ? "" : descends(at) !== reversed ? " ↓" : " ↑"}</span>
                  </button>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {found.slice(shown * PAGE, (shown + 1) * PAGE).map((client) => (
              <tr key={client.identity} class={client.fair ? "" : "short"}>
                {COLUMNS.map(({ title, cell, wide }, at) =>
                  at === 0 ? (
                    <th key={title} scope="row">
                      {cell(client)}
                    </th>
                  ) : (
                    <td key={title} class={wide ? "wide" : ""}>
                      {cell(client)}
                    </td>
                  ),
                )}
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
      {found.length === 0 && <p>{clients.length === 0 ? "No client is known yet." : "No client has such a name."}</p>}
      {pages > 1 && (
        <nav class="pages" aria-label="Pages of clients">
          <button type="button" disabled={shown === 0} onClick={() => setPage(shown - 1)}>
            Previous
          </button>
          <span>
            {shown * PAGE + 1} to {Math.min(found.length, (shown + 1) * PAGE)} of {found.length}
          </span>
          <button type="button" disabled={shown === pages - 1} onClick={() => setPage(shown + 1)}>
            Next
          </button>
        </nav>
      )}
    </section>
  );
}

function descends(column: number): boolean {
  return column > 1 && !COLUMNS[column]!.ascends;
}

/** The clients in order. The order is kept for a while, so that a row does not move while it is read. */
function useOrder(clients: ClientNow[], column: number, reversed: boolean, wanted: string): ClientNow[] {
  const order = useRef({ names: [] as string[], of: "", at: 0 });
  return useMemo(() => {
    const of = `${column} ${reversed} ${wanted} ${clients.length}`;
    const last = order.current;
    if (last.of !== of || performance.now() - last.at > ORDER_MS) {
      const text = wanted.toLowerCase();
      const names = clients
        .filter((client) => nameOf(client).toLowerCase().includes(text))
        .sort(comparison(COLUMNS[column]!.by, descends(column) !== reversed))
        .map((client) => client.identity);
      order.current = { names, of, at: performance.now() };
    }
    const byName = new Map(clients.map((client) => [client.identity, client]));
    return order.current.names.flatMap((name) => byName.get(name) ?? []);
  }, [clients, column, reversed, wanted]);
}

/** Clients that get too little come first, however the table is sorted. */
function comparison(by: ColumnOf["by"], descending: boolean): (one: ClientNow, other: ClientNow) => number {
  const sign = descending ? -1 : 1;
  return (one, other) => {
    const [a, b] = [by(one), by(other)];
    const order = typeof a === "string" ? a.localeCompare(String(b)) : a - Number(b);
    return Number(one.fair) - Number(other.fair) || sign * order || nameOf(one).localeCompare(nameOf(other));
  };
}
