// The table of all clients: sorted by who is hurt, filtered, a page at a time; many clients are rows of their tenants, which open.

import type { ComponentChildren } from "preact";
import { useMemo, useRef, useState } from "preact/hooks";
import { count, duration, lastSeconds, percent, seconds } from "./format";
import { Find, Pages, Scroll } from "./parts";
import { hrefOf, hrefOfRequest } from "./route";
import { type ClientNow, nameOf } from "./state";
import { plural } from "./verdict";

const PAGE = 50;
/** Rows keep their places for so long, although the figures change. */
const ORDER_MS = 10_000;
/** From so many clients on, tenants have rows. */
const MANY = 20;
/** Then so many clients that fare badly, and so many that hurt others, have rows above those of the tenants. */
const WORST = 5;
const WORST_HURTING = 3;

/** A row: a client, or a tenant with all of its clients. */
interface Row {
  key: string;
  client: ClientNow;
  /** The clients of a tenant. */
  members: ClientNow[];
  /** Above all others. */
  first: boolean;
}

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
  { title: "Client", by: nameOf, cell: (client) => <a href={hrefOf(client.identity)}>{nameOf(client)}</a> },
  { title: "Given of owed", by: (client) => client.given_over_owed ?? Number.MAX_VALUE, ascends: true, cell: (client) => percent(client.given_over_owed) },
  { title: "Share, owed", by: (client) => client.share ?? -1, cell: (client) => <Share client={client} />, wide: true },
  { title: "TTFT", by: (client) => client.ttft_p50_s ?? -1, cell: (client) => seconds(client.ttft_p50_s) },
  { title: "p95", by: (client) => client.ttft_p95_s ?? -1, cell: (client) => seconds(client.ttft_p95_s), wide: true },
  { title: "Between tokens", by: (client) => client.itl_s ?? -1, cell: (client) => seconds(client.itl_s), wide: true },
  { title: "Waiting", by: (client) => client.waiting, cell: (client) => count(client.waiting) },
  { title: "Oldest", by: (client) => client.oldest_s, cell: (client) => (client.oldest_s >= 1 ? duration(client.oldest_s) : "–") },
  { title: "Running", by: (client) => client.running, cell: (client) => count(client.running), wide: true },
  { title: "Service/s", by: (client) => client.service_per_s, cell: (client) => count(client.service_per_s), wide: true },
  { title: "Hit rate", by: (client) => client.hit_rate ?? -1, cell: (client) => percent(client.hit_rate), wide: true },
  { title: "Failed", by: (client) => client.failed, cell: (client) => count(client.failed) },
];
/** How badly a client fares: the table is sorted by it until another column is chosen. */
const HURT = -1;

/** Who is held up comes first, then who is given too little, who waits longest or fails, who hurts, and who is served most. */
function hurtOf(client: ClientNow): number {
  if (client.level === "HeldUp") return 5e9 + client.oldest_s;
  if (!client.fair) return 4e9 - (client.given_over_owed ?? 0);
  if (client.held > 0) return 3e9 + client.oldest_s;
  if (client.failed > 0) return 2e9 + client.failed;
  return client.hurts ? 1e9 : Math.min(client.service_per_s, 9e8);
}

/** The part of the service as a bar, with a mark at what the client was owed. */
function Share({ client }: { client: ClientNow }) {
  const owed = client.owed === null ? "" : `, ${percent(client.owed)}`;
  return (
    <span class="share">
      <span class="bar" aria-hidden="true">
        <span class={client.fair ? "fill" : "fill short"} style={{ width: `${100 * (client.share ?? 0)}%` }} />
        {client.owed !== null && <span class="mark" style={{ left: `${Math.min(99, 100 * client.owed)}%` }} />}
      </span>
      <span class="parts">
        {percent(client.share)}
        {owed}
      </span>
    </span>
  );
}

export function Clients({ clients, window_s }: { clients: ClientNow[]; window_s: number }) {
  const [column, setColumn] = useState(HURT);
  const [reversed, setReversed] = useState(false);
  const [wanted, setWanted] = useState("");
  const [page, setPage] = useState(0);
  const [opened, setOpened] = useState<ReadonlySet<string>>(new Set());
  const grouped = clients.length > MANY && new Set(clients.map((one) => one.tenant)).size > 1 && !wanted;
  const rows = useMemo(() => {
    if (!grouped) return clients.map(rowOf);
    return column === HURT ? [...worstOf(clients), ...tenantsOf(clients)] : tenantsOf(clients);
  }, [clients, grouped, column]);
  const found = useOrder(rows, column, reversed, wanted);
  const shown = found.flatMap((row) =>
    opened.has(row.key) && row.members.length ? [row, ...row.members.map(rowOf).sort(comparison(column, reversed))] : [row],
  );
  const last = Math.max(0, Math.ceil(shown.length / PAGE) - 1);
  const at = Math.min(page, last);

  function sortBy(by: number): void {
    setReversed(by === column && !reversed);
    setColumn(by);
    setPage(0);
  }

  /** What is no client may be a request. */
  function open(): void {
    if (wanted.trim() && shown.length === 0) location.hash = hrefOfRequest(wanted.trim());
  }

  function toggle(tenant: string): void {
    const next = new Set(opened);
    if (!next.delete(tenant)) next.add(tenant);
    setOpened(next);
  }

  return (
    <section aria-labelledby="clients">
      <div class="heading">
        <h2 id="clients">Clients</h2>
        <span class="controls">
          {column !== HURT && (
            <button type="button" onClick={() => sortBy(HURT)}>
              Who is hurt first
            </button>
          )}
          <Find title="Find client or request" value={wanted} change={(text) => (setWanted(text), setPage(0))} enter={open} />
        </span>
      </div>
      <p class="note">
        Given of owed, time to first token and failed: the last minute. Waiting, oldest, running: now. The rest: {lastSeconds(window_s)}.
      </p>
      <Scroll label="Table of clients">
        <table class={grouped ? "dense" : ""}>
          <thead>
            <tr>
              {COLUMNS.map(({ title, wide }, by) => (
                <th
                  key={title}
                  scope="col"
                  class={wide ? "wide" : ""}
                  aria-sort={by !== column ? "none" : descends(by) !== reversed ? "descending" : "ascending"}
                >
                  <button type="button" onClick={() => sortBy(by)}>
                    {title}
                    <span aria-hidden="true">{by !== column ? "" : descends(by) !== reversed ? " ↓" : " ↑"}</span>
                  </button>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {shown.slice(at * PAGE, (at + 1) * PAGE).map((row) => (
              <tr key={row.key} class={classOf(row, grouped)}>
                {COLUMNS.map(({ title, cell, wide }, by) =>
                  by === 0 ? (
                    <th key={title} scope="row">
                      {row.members.length ? <Tenant row={row} opened={opened.has(row.key)} toggle={toggle} /> : cell(row.client)}
                      <Words row={row} grouped={grouped} />
                    </th>
                  ) : (
                    <td key={title} class={wide ? "wide" : ""}>
                      {cell(row.client)}
                    </td>
                  ),
                )}
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
      {shown.length === 0 && (
        <p>
          {clients.length === 0 ? "No client is known yet." : "No client has such a name."}{" "}
          {wanted.trim() && <a href={hrefOfRequest(wanted.trim())}>Show the request with the id {wanted.trim()}</a>}
        </p>
      )}
      <Pages of="clients" page={at} size={PAGE} number={shown.length} open={setPage} />
    </section>
  );
}

function classOf(row: Row, grouped: boolean): string {
  const names = [!row.client.fair ? "short" : row.client.hurts ? "hurts" : "", row.members.length ? "tenant" : grouped && !row.first ? "member" : ""];
  return names.join(" ").trim();
}

function Tenant({ row, opened, toggle }: { row: Row; opened: boolean; toggle: (tenant: string) => void }) {
  return (
    <button type="button" class="opens" aria-expanded={opened} onClick={() => toggle(row.key)}>
      <span aria-hidden="true">{opened ? "▾" : "▸"}</span> {row.client.tenant}
    </button>
  );
}

/** Sentences where there is room for them; among many rows only those that matter. */
function Words({ row, grouped }: { row: Row; grouped: boolean }) {
  if (row.members.length) {
    const hurt = row.members.filter((one) => !one.fair).length;
    // The other clients of a tenant together have no name.
    const clients = plural(row.members.filter((one) => one.client).length, "client", "clients");
    return <span class="words">{hurt ? `${clients}, ${count(hurt)} hurt` : clients}</span>;
  }
  const { client } = row;
  if (grouped && client.fair && !client.hurts) return null;
  return <span class="words">{client.words}</span>;
}

function rowOf(client: ClientNow): Row {
  return { key: client.identity, client, members: [], first: false };
}

/** Clients to look at first: those that fare worst, and those that hurt them. */
function worstOf(clients: ClientNow[]): Row[] {
  const by = comparison(HURT, false);
  const rows = clients.map((client) => ({ ...rowOf(client), key: `first ${client.identity}`, first: true })).sort(by);
  const hurt = rows.filter(({ client }) => !client.fair).slice(0, WORST);
  return [...hurt, ...rows.filter(({ client }) => client.fair && client.hurts).slice(0, WORST_HURTING)];
}

/** Each tenant's clients in a row: sums, and of times the worst. */
function tenantsOf(clients: ClientNow[]): Row[] {
  const groups = new Map<string, ClientNow[]>();
  for (const client of clients) groups.set(client.tenant, [...(groups.get(client.tenant) ?? []), client]);
  return [...groups].map(([tenant, members]) => (members.length === 1 ? rowOf(members[0]!) : { key: `tenant ${tenant}`, client: together(tenant, members), members, first: false }));
}

function together(tenant: string, members: ClientNow[]): ClientNow {
  const sum = (of: (one: ClientNow) => number | null) => members.reduce((total, one) => total + (of(one) ?? 0), 0);
  const known = (of: (one: ClientNow) => number | null) => members.map(of).filter((value) => value !== null);
  const most = (of: (one: ClientNow) => number | null) => (known(of).length ? Math.max(...known(of)) : null);
  return {
    ...members[0]!,
    identity: "",
    tenant,
    client: "",
    words: "",
    level: members.some((one) => one.level === "HeldUp") ? "HeldUp" : members[0]!.level,
    fair: members.every((one) => one.fair),
    hurts: members.some((one) => one.hurts),
    given_over_owed: known((one) => one.given_over_owed).length ? Math.min(...known((one) => one.given_over_owed)) : null,
    share: most((one) => one.share) === null ? null : sum((one) => one.share),
    owed: most((one) => one.owed) === null ? null : sum((one) => one.owed),
    ttft_p50_s: most((one) => one.ttft_p50_s),
    ttft_p95_s: most((one) => one.ttft_p95_s),
    itl_s: most((one) => one.itl_s),
    hit_rate: null,
    oldest_s: most((one) => one.oldest_s) ?? 0,
    waiting: sum((one) => one.waiting),
    held: sum((one) => one.held),
    running: sum((one) => one.running),
    service_per_s: sum((one) => one.service_per_s),
    failed: sum((one) => one.failed),
  };
}

function descends(column: number): boolean {
  return column !== 0 && !COLUMNS[column]?.ascends;
}

/** The rows in order. The order is kept for a while, so that a row does not move while it is read. */
function useOrder(rows: Row[], column: number, reversed: boolean, wanted: string): Row[] {
  const order = useRef({ names: [] as string[], of: "", at: 0 });
  return useMemo(() => {
    const hurt = rows.filter((row) => !row.client.fair).map((row) => row.key);
    const of = `${column} ${reversed} ${wanted} ${rows.length} ${hurt}`;
    const last = order.current;
    if (last.of !== of || performance.now() - last.at > ORDER_MS) {
      const text = wanted.toLowerCase();
      const names = rows
        .filter((row) => row.members.length || nameOf(row.client).toLowerCase().includes(text))
        .sort(comparison(column, reversed))
        .map((row) => row.key);
      order.current = { names, of, at: performance.now() };
    }
    const byName = new Map(rows.map((row) => [row.key, row]));
    return order.current.names.flatMap((name) => byName.get(name) ?? []);
  }, [rows, column, reversed, wanted]);
}

/** Clients that get too little, or are held up, come first, however the table is sorted. */
function comparison(column: number, reversed: boolean): (one: Row, other: Row) => number {
  const by = COLUMNS[column]?.by ?? hurtOf;
  const sign = descends(column) !== reversed ? -1 : 1;
  return ({ client: one, first }, { client: other, first: otherFirst }) => {
    const [a, b] = [by(one), by(other)];
    const order = typeof a === "string" ? named(a, String(b)) : a - Number(b);
    return Number(otherFirst) - Number(first) || Number(one.fair) - Number(other.fair) || sign * order || named(nameOf(one), nameOf(other));
  };
}

/** By name; numbers in names by their values. */
function named(one: string, other: string): number {
  return one.localeCompare(other, undefined, { numeric: true });
}
