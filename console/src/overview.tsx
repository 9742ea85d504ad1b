// The page of all clients.

import { useMemo } from "preact/hooks";
import { Chart, type Line } from "./chart";
import { Clients } from "./clients";
import { MISSING, count, duration, percent, seconds } from "./format";
import { COLOURS, coloursOf } from "./colours";
import { Limits } from "./limits";
import { AlertName, Cards, Causes, Definitions, Pill, Scroll } from "./parts";
import type { Reading } from "./read";
import { hrefOf, hrefOfModel } from "./route";
import {
  type Condition,
  type ConsoleState,
  type HourState,
  type LedgerState,
  type Level,
  type ModelNow,
  type PeerState,
  type ReplicaNow,
  type Series,
  nameOf,
} from "./state";
import { Firing, Verdict, plural } from "./verdict";

export function Overview({ now, hour }: { now: Reading<ConsoleState>; hour: HourState | undefined }) {
  const state = now.value!;
  return (
    <>
      <Verdict now={now} />
      <Firing state={state} />
      <Cards
        figures={state.total}
        latency={state}
        whose={state.scope === "service" ? " within share" : ""}
        waiting={state.waiting}
        window_s={state.window_s}
        oldest_s={state.oldest_s}
      />
      {Object.keys(state.errors).length > 0 && (
        <section class="line" aria-label="Errors">
          Requests without an answer in the last minute, by cause: <Causes causes={state.errors} linked />
        </section>
      )}
      {state.models.length > 0 && !state.model && <Models models={state.models} service={state.scope === "service"} />}
      <Clients clients={state.clients} window_s={state.window_s} />
      {hour && <Charts hour={hour} />}
      <Limits limits={state.limits} named={state.scope === "service"} />
      {state.scope === "service" && (
        <>
          <Replicas replicas={state.replicas} />
          <div class="columns">
            <Conditions conditions={state.conditions} />
            {state.ledger && <Ledger ledger={state.ledger} peers={state.peers} />}
          </div>
        </>
      )}
      <Definitions state={state} />
    </>
  );
}

function Charts({ hour }: { hour: HourState }) {
  const { service, ttft, requests, each } = useMemo(() => linesOf(hour.series), [hour]);
  const times = hour.times_unix_s;
  if (times.length < 2) return <p class="note">Charts appear after twenty seconds.</p>;
  return (
    <section class="charts" aria-labelledby="hour">
      <h2 id="hour">The last hour</h2>
      <Chart
        title={`Service by ${each}`}
        note="Weighted tokens per second"
        each={each}
        times={times}
        lines={service}
        format={count}
        stacked
      />
      <Chart
        title={`Time to first token by ${each}`}
        note={each === "model" ? "Mean of the requests that ended" : "Median of the last minute; who still waits counts"}
        each={each}
        times={times}
        lines={ttft}
        format={seconds}
      />
      <Chart title="Requests" note="Waiting and running, all clients" times={times} lines={requests} format={count} />
    </section>
  );
}

interface Lines {
  /** What a line is. */
  each: "client" | "model";
  service: Line[];
  ttft: Line[];
  requests: Line[];
}

/** The first series is of all together. */
function linesOf([total, ...others]: Series[]): Lines {
  if (!total) return { each: "client", service: [], ttft: [], requests: [] };
  const each = others.some((one) => one.model) ? "model" : "client";
  const drawn = each === "model" ? mostServed(others) : others;
  const line = (series: Series, colour: number) => ({
    label: series.model || nameOf(series),
    colour,
    href: series.model ? hrefOfModel(series.model) : hrefOf(series.identity),
  });
  const colours = coloursOf(drawn.map((one) => one.model || one.identity));
  const service: Line[] = drawn.map((one, at) => ({ ...line(one, colours[at]!), values: one.service_per_s }));
  const rest = total.service_per_s.map((all, at) =>
    Math.max(0, (all ?? 0) - drawn.reduce((shown, one) => shown + (one.service_per_s[at] ?? 0), 0)),
  );
  const most = Math.max(...total.service_per_s.map((value) => value ?? 0));
  if (rest.some((value) => value > 0.001 * most)) {
    service.push({ label: `other ${each}s`, colour: "rest", values: rest });
  }
  return {
    each,
    service,
    ttft: drawn.map((one, at) => ({ ...line(one, colours[at]!), values: one.ttft_s })),
    requests: [
      { label: "waiting", colour: 1, values: total.waiting },
      { label: "running", colour: 0, values: total.running },
    ],
  };
}

function mostServed(models: Series[]): Series[] {
  const served = (one: Series) => one.service_per_s.reduce<number>((sum, value) => sum + (value ?? 0), 0);
  return [...models].sort((one, other) => served(other) - served(one)).slice(0, COLOURS);
}

const LEVELS: Record<Level, ["good" | "bad" | "warn" | "idle", string]> = {
  Out: ["bad", "out"],
  HeldUp: ["bad", "held up"],
  Unfair: ["warn", "unfair"],
  Unjudged: ["idle", "not judged yet"],
  Fair: ["good", "fair"],
  Nothing: ["idle", "idle"],
};

/** `service`: the reader sees replicas. */
function Models({ models, service }: { models: ModelNow[]; service: boolean }) {
  return (
    <section aria-labelledby="models">
      <h2 id="models">Models</h2>
      <Scroll label="Table of models">
        <table>
          <thead>
            <tr>
              <th scope="col">Model</th>
              <th scope="col">Verdict</th>
              <th scope="col">TTFT</th>
              <th scope="col">Waiting</th>
              <th scope="col" class="wide">
                Oldest
              </th>
              <th scope="col" class="wide">
                Running
              </th>
              <th scope="col" class="wide">
                Service/s
              </th>
              <th scope="col" class="wide">
                Hit rate
              </th>
              <th scope="col" class="wide">
                Failed
              </th>
              {service && (
                <th scope="col" class="wide">
                  Replicas
                </th>
              )}
            </tr>
          </thead>
          <tbody>
            {models.map((one) => {
              const [kind, word] = LEVELS[one.level || "Nothing"];
              return (
                <tr key={one.service}>
                  <th scope="row">
                    <a href={hrefOfModel(one.model)}>{one.model}</a>
                    <span class="words wide">{one.verdict}</span>
                  </th>
                  <td>
                    <Pill kind={kind}>{word}</Pill>
                  </td>
                  <td>{seconds(one.ttft_p50_s)}</td>
                  <td>{count(one.waiting)}</td>
                  <td class="wide">{one.oldest_s >= 1 ? duration(one.oldest_s) : MISSING}</td>
                  <td class="wide">{count(one.running)}</td>
                  <td class="wide">{count(one.service_per_s)}</td>
                  <td class="wide">{percent(one.hit_rate)}</td>
                  <td class="wide">{count(one.failed)}</td>
                  {service && (
                    <td class="wide">
                      {count(one.routable ?? 0)} of {count(one.replicas ?? 0)}
                    </td>
                  )}
                </tr>
              );
            })}
          </tbody>
        </table>
      </Scroll>
    </section>
  );
}

function Replicas({ replicas }: { replicas: ReplicaNow[] }) {
  const several = replicas.some((one) => one.model);
  return (
    <section aria-labelledby="replicas">
      <h2 id="replicas">Replicas</h2>
      {replicas.length === 0 ? (
        <p>No replica is configured.</p>
      ) : (
        <Scroll label="Table of replicas">
          <table>
            <thead>
              <tr>
                <th scope="col">Replica</th>
                {several && (
                  <th scope="col" class="wide">
                    Model
                  </th>
                )}
                <th scope="col">State</th>
                <th scope="col">Service/s</th>
                <th scope="col">Running</th>
                <th scope="col">Waiting</th>
                <th scope="col">Hit rate</th>
                <th scope="col" class="wide">
                  Cached blocks
                </th>
                <th scope="col" class="wide">
                  Policy
                </th>
                <th scope="col" class="wide">
                  Last report
                </th>
                <th scope="col" class="wide">
                  Failed, last minute
                </th>
              </tr>
            </thead>
            <tbody>
              {replicas.map((replica) => (
                <Replica key={`${replica.model} ${replica.name}`} replica={replica} />
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
    </section>
  );
}

function stateOf(replica: ReplicaNow): ["good" | "warn" | "bad", string] {
  if (replica.suspicion) return [replica.suspicion.startsWith("suspect") ? "bad" : "warn", replica.suspicion];
  if (replica.silent_s > 0) return ["bad", `silent: no token for ${duration(replica.silent_s)}`];
  if (replica.routable && replica.failing) return ["bad", `ready, but fails: ${percent(replica.failing)} of its latest requests`];
  if (replica.routable) return ["good", "ready"];
  const unready = replica.unready_reason ? `: ${replica.unready_reason}` : "";
  if (replica.loads) return ["warn", `loading${unready}`];
  if (replica.joined) return ["warn", replica.unschedulable_reason || `not ready${unready}`];
  return ["bad", replica.unschedulable_reason || "gone"];
}

function Replica({ replica }: { replica: ReplicaNow }) {
  const [kind, full] = stateOf(replica);
  const [state, why] = full.split(/: (.*)/, 2);
  return (
    <tr>
      <th scope="row">{replica.name}</th>
      {replica.model && <td class="wide">{replica.model}</td>}
      <td>
        <Pill kind={kind}>{state}</Pill>
        {why && <span class="words why">{why}</span>}
      </td>
      <td>{count(replica.service_per_s)}</td>
      <td>{count(replica.here.begun)}</td>
      <td>{count(replica.here.unanswered)}</td>
      <td>{percent(replica.hit_rate)}</td>
      <td class="wide">{count(replica.prefix_blocks)}</td>
      <td class="wide">{replica.policy || MISSING}</td>
      <td class="wide">{replica.report_age_s === null ? "none" : `${duration(replica.report_age_s)} ago`}</td>
      <td class="wide">{count(replica.here.lost)}</td>
    </tr>
  );
}

function Conditions({ conditions }: { conditions: Condition[] }) {
  const problems = conditions.filter((condition) => condition.problem);
  const fine = conditions.filter((condition) => !condition.problem);
  return (
    <section aria-labelledby="conditions">
      <h2 id="conditions">Conditions</h2>
      <p class="note">What this router sees now. An alert fires after its condition was true for minutes.</p>
      {problems.length === 0 ? (
        <p>
          <Pill kind="good">no problem</Pill>
        </p>
      ) : (
        <List conditions={problems} />
      )}
      <details>
        <summary>{plural(fine.length, "condition is fine", "conditions are fine")}</summary>
        <List conditions={fine} />
      </details>
    </section>
  );
}

function List({ conditions }: { conditions: Condition[] }) {
  return (
    <ul class="conditions">
      {conditions.map(({ alert, problem, message, runbook }) => (
        <li key={alert + message}>
          <Pill kind={problem ? "bad" : "good"}>{problem ? "problem" : "fine"}</Pill>
          <span>
            {message} <AlertName alert={alert} runbook={runbook} />
          </span>
        </li>
      ))}
    </ul>
  );
}

function Ledger({ ledger, peers }: { ledger: LedgerState; peers: PeerState[] }) {
  return (
    <section aria-labelledby="ledger">
      <h2 id="ledger">Ledger</h2>
      <dl class="facts">
        <dt>Store</dt>
        <dd>
          <Pill kind={ledger.store_error ? "bad" : "good"}>{ledger.store_error ? "fails" : "works"}</Pill> {ledger.store}{" "}
          {ledger.store_error}
        </dd>
        <dt>Clients</dt>
        <dd>{count(ledger.clients)}</dd>
        <dt>Open replica accounts</dt>
        <dd>{count(ledger.open_accounts)}</dd>
        <dt>Closed totals</dt>
        <dd>version {count(ledger.closed_totals_version)}</dd>
        <dt>Not counted</dt>
        <dd>{ledger.uncounted.length ? ledger.uncounted.join(", ") : "none"}</dd>
        <dt>Other routers</dt>
        <dd>
          {peers.length === 0 && "none"}
          {peers.map((peer) => (
            <div key={peer.name}>
              <Pill kind={peer.error ? "bad" : "good"}>{peer.error ? "no answer" : "answers"}</Pill> {peer.name}{" "}
              {peer.error || (peer.answer_age_s === null ? "" : `${duration(peer.answer_age_s)} ago`)}
            </div>
          ))}
        </dd>
      </dl>
    </section>
  );
}
