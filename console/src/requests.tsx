// The newest requests, and why one of them took so long.

import { useMemo, useState } from "preact/hooks";
import { MISSING, count, exactClock, seconds } from "./format";
import { Find, Pages, Pill, Scroll } from "./parts";
import { hrefOf, hrefOfRequest } from "./route";
import type { RequestNow, RequestsState } from "./state";

const PAGE = 50;
/** The places where a request waits before its first token, and their colours. */
const PLACES: { title: string; colour: number | "rest"; of: (one: RequestNow) => number }[] = [
  { title: "for a replica", colour: 3, of: (one) => one.held_s },
  { title: "at the gate", colour: 1, of: (one) => one.gate_s },
  { title: "at the replica", colour: 0, of: (one) => one.engine_s },
  { title: "other", colour: "rest", of: otherS },
];

function beforeFirstS(one: RequestNow): number {
  return one.ttft_s ?? one.duration_s;
}

function otherS(one: RequestNow): number {
  return Math.max(0, beforeFirstS(one) - one.held_s - one.gate_s - one.engine_s);
}

const ORDERS: Record<string, (one: RequestNow, other: RequestNow) => number> = {
  newest: (one, other) => other.begun_unix_s - one.begun_unix_s,
  "slowest first token": (one, other) => beforeFirstS(other) - beforeFirstS(one),
};

export function Requests({ state, failedOnly }: { state: RequestsState; failedOnly: boolean }) {
  const [wanted, setWanted] = useState("");
  const [order, setOrder] = useState("newest");
  const [failed, setFailed] = useState(failedOnly);
  const [page, setPage] = useState(0);
  const found = useMemo(() => {
    const text = wanted.toLowerCase();
    return state.requests
      .filter((one) => !failed || one.outcome)
      .filter((one) => `${one.name} ${one.request_id} ${one.model} ${one.replica} ${one.outcome}`.toLowerCase().includes(text))
      .sort(ORDERS[order]!);
  }, [state, wanted, order, failed]);
  const longest = Math.max(...found.map(beforeFirstS), 0.001);
  const several = state.requests.some((one) => one.model);
  // A tenant sees no replicas.
  const replicas = state.requests.some((one) => one.replica);

  /** The request with this id; otherwise the only one that is found. */
  function open(): void {
    const one = found.find(({ request_id }) => request_id === wanted.trim()) ?? (found.length === 1 ? found[0] : undefined);
    if (one) location.hash = hrefOfRequest(one.request_id);
  }

  return (
    <section aria-label="Requests">
      <div class="heading">
        <p class="note">
          Of this router: those in flight, and the last {count(state.kept)} of each tenant, 1,000 in all.
        </p>
        <span class="controls">
          <Find title="Find" value={wanted} change={(text) => (setWanted(text), setPage(0))} enter={open} />
          <label>
            First{" "}
            <select value={order} onChange={(event) => setOrder(event.currentTarget.value)}>
              {Object.keys(ORDERS).map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          </label>
          <label>
            <input type="checkbox" checked={failed} onChange={(event) => (setFailed(event.currentTarget.checked), setPage(0))} /> Failed only
          </label>
        </span>
      </div>
      <Key />
      <Scroll label="Table of requests">
        <table>
          <thead>
            <tr>
              <th scope="col">Client, id</th>
              {several && (
                <th scope="col" class="wide">
                  Model
                </th>
              )}
              <th scope="col" class="wide">
                Began
              </th>
              <th scope="col">First token</th>
              <th scope="col" class="wide">
                Where it waited
              </th>
              <th scope="col" class="wide">
                Between tokens
              </th>
              <th scope="col" class="wide">
                Input (cached)
              </th>
              <th scope="col" class="wide">
                Output
              </th>
              {replicas && (
                <th scope="col" class="wide">
                  Replica
                </th>
              )}
              <th scope="col">State</th>
            </tr>
          </thead>
          <tbody>
            {found.slice(page * PAGE, (page + 1) * PAGE).map((one) => (
              <tr key={one.model + one.client + one.request_id + one.begun_unix_s}>
                <th scope="row">
                  {one.name}
                  <a class="words id" href={hrefOfRequest(one.request_id)}>
                    {one.request_id}
                  </a>
                </th>
                {several && <td class="wide">{one.model}</td>}
                <td class="wide">{exactClock(1000 * one.begun_unix_s)}</td>
                <td>{one.ttft_s === null ? `${seconds(one.duration_s)}, none` : seconds(one.ttft_s)}</td>
                <td class="wide">
                  <Waited one={one} longest={longest} />
                </td>
                <td class="wide">{seconds(one.itl_s)}</td>
                <td class="wide">
                  {count(one.input_tokens)} ({count(one.cached_tokens)})
                </td>
                <td class="wide">{count(one.output_tokens)}</td>
                {replicas && <td class="wide">{one.replica || MISSING}</td>}
                <td>
                  <State one={one} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
      {found.length === 0 && <p>No such request.</p>}
      <Pages of="requests" page={page} size={PAGE} number={found.length} open={setPage} />
    </section>
  );
}

function State({ one }: { one: RequestNow }) {
  if (one.outcome) return <Pill kind="bad">{one.outcome.replaceAll("_", " ")}</Pill>;
  if (one.state === "ended") return <Pill kind="good">answered</Pill>;
  return <Pill kind={one.state === "waiting" ? "warn" : "idle"}>{one.state}</Pill>;
}

/** The time before the first token, by place, in proportion to the longest one shown. */
function Waited({ one, longest }: { one: RequestNow; longest: number }) {
  return (
    <span class="waited" aria-hidden="true">
      {PLACES.map(({ title, colour, of }) => (
        <span key={title} class={`line-${colour}`} style={{ width: `${(100 * of(one)) / longest}%` }} />
      ))}
    </span>
  );
}

function Key() {
  return (
    <p class="note key">
      {PLACES.map(({ title, colour }) => (
        <span key={title}>
          <span class={`swatch line-${colour}`} aria-hidden="true" />
          {title}
        </span>
      ))}
    </p>
  );
}

/** One request: where its time went, and who was ahead. */
export function RequestPage({ state }: { state: RequestsState }) {
  const one = state.requests[0];
  if (!one) {
    return (
      <section aria-label="Not found">
        <p>This router keeps no request with this id. It keeps the last {count(state.kept)} of each tenant since its start; other routers have their own.</p>
      </section>
    );
  }
  const [first, ...rest] = state.words;
  return (
    <>
      <section class={`verdict ${one.outcome ? "out" : "nothing"}`} aria-label="In words">
        <p class="sentence">{first}</p>
        <ul>
          {rest.map((words) => (
            <li key={words}>{words}</li>
          ))}
        </ul>
      </section>
      <section aria-labelledby="where">
        <h2 id="where">Before the first token</h2>
        <Waited one={one} longest={Math.max(beforeFirstS(one), 0.001)} />
        <dl class="facts">
          {PLACES.map(({ title, colour, of }) => (
            <Fact key={title} term={title} swatch={`line-${colour}`} value={seconds(of(one))} />
          ))}
        </dl>
      </section>
      <div class="columns">
        <section aria-labelledby="ahead">
          <h2 id="ahead">Who was ahead</h2>
          {state.ahead.length === 0 ? (
            <p>No kept request began at its replica while it waited there.</p>
          ) : (
            <>
              <p class="note">Requests that began at {one.replica ? `replica ${one.replica}` : "its replica"} while this one waited there, of those that this router keeps</p>
              <table>
                <thead>
                  <tr>
                    <th scope="col">Client</th>
                    <th scope="col">Requests</th>
                    <th scope="col">Tokens computed</th>
                  </tr>
                </thead>
                <tbody>
                  {state.ahead.map(({ name, requests, tokens }) => (
                    <tr key={name}>
                      <th scope="row">{name}</th>
                      <td>{count(requests)}</td>
                      <td>{count(tokens)}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
              {state.ahead_more > 0 && <p class="note">and {count(state.ahead_more)} more clients</p>}
            </>
          )}
        </section>
        <section aria-labelledby="facts">
          <h2 id="facts">The request</h2>
          <dl class="facts">
            <dt>Client</dt>
            <dd>
              <a href={hrefOf(one.client)}>{one.name}</a>
            </dd>
            <Fact term="State" value={one.outcome ? `failed: ${one.outcome.replaceAll("_", " ")}` : one.state === "ended" ? "answered" : one.state} />
            <Fact term="Began" value={exactClock(1000 * one.begun_unix_s)} />
            <Fact term="Endpoint" value={one.path} />
            {one.model && <Fact term="Model" value={one.model} />}
            <Fact term="Replica" value={`${one.replica || MISSING}${one.attempts > 1 ? `, sent ${one.attempts} times` : ""}`} />
            <Fact term="First token" value={seconds(one.ttft_s)} />
            <Fact term="Between tokens" value={seconds(one.itl_s)} />
            <Fact term="In all" value={seconds(one.duration_s)} />
            <Fact term="Input tokens" value={`${count(one.input_tokens)}, of which ${count(one.cached_tokens)} cached`} />
            <Fact term="Output tokens" value={count(one.output_tokens)} />
            {one.trace_id && <Fact term="Trace" value={one.trace_id} />}
          </dl>
        </section>
      </div>
    </>
  );
}

function Fact({ term, value, swatch }: { term: string; value: string; swatch?: string }) {
  return (
    <>
      <dt>
        {swatch && <span class={`swatch ${swatch}`} aria-hidden="true" />}
        {term}
      </dt>
      <dd>{value}</dd>
    </>
  );
}
