// The page of one client.

import { useMemo } from "preact/hooks";
import { Chart, type Line } from "./chart";
import { COLOURS, coloursOf } from "./colours";
import { count, lastSeconds, percent, ratio, seconds } from "./format";
import { Cards, Causes, Definitions, Scroll } from "./parts";
import { hrefOfModel } from "./route";
import { type ClientAtReplica, type ConsoleState, type HourState, type Series, nameOf } from "./state";

interface Props {
  identity: string;
  state: ConsoleState;
  hour: HourState | undefined;
}

export function ClientPage({ identity, state, hour }: Props) {
  const client = state.clients.find((one) => one.identity === identity);
  if (!client) return <p>This router knows no such client. It may have sent no request since the router started.</p>;
  return (
    <>
      <section class={`verdict ${client.level.toLowerCase()}`} aria-label="In words">
        <p class="sentence">
          {client.words}
        </p>
        <p class="note">
          Weight {client.weight}. Share of {lastSeconds(state.window_s)}: {percent(client.share)}
          {client.owed !== null && `, owed ${percent(client.owed)}`}. Requests {count(client.requested_per_s)} weighted
          tokens/s of all routers.
        </p>
      </section>
      <Cards
        figures={client}
        latency={client}
        whose=""
        waiting={client.waiting}
        oldest_s={client.oldest_s}
        window_s={state.window_s}
        owed
      />
      {hour && <Charts hour={hour} />}
      <div class="columns">
        <section aria-labelledby="requests">
          <h2 id="requests">Requests at this router</h2>
          <dl class="facts">
            <dt>In flight</dt>
            <dd>{count(client.in_flight)}</dd>
            <dt>Since its start</dt>
            <dd>{count(client.requests)}</dd>
            <dt>Without an answer, last minute</dt>
            <dd>
              <Causes causes={client.causes} />
            </dd>
            <dt>Quality of experience</dt>
            <dd>{ratio(client.qoe)}</dd>
            <dt>Lead</dt>
            <dd>{client.lead_s.toFixed(1)} s of fair service</dd>
          </dl>
        </section>
        {hour && hour.replicas.length > 0 && <AtReplicas replicas={hour.replicas} />}
      </div>
      <Definitions state={state} />
    </>
  );
}

function Charts({ hour }: { hour: HourState }) {
  const times = hour.times_unix_s;
  const lines = useMemo(() => {
    const own = hour.series[0];
    return (
      own && {
        service: [
          { label: "given", colour: 0 as const, values: own.service_per_s },
          { label: "owed", colour: "owed" as const, values: own.owed_per_s },
        ],
        ttft: ttftOf(hour.series),
        requests: [
          { label: "waiting", colour: 1 as const, values: own.waiting },
          { label: "running", colour: 0 as const, values: own.running },
        ],
        tokens: [{ label: "output tokens", colour: 4 as const, values: own.output_tokens_per_s }],
      }
    );
  }, [hour]);
  if (!lines || times.length < 2) return <p class="note">No samples of this client in the last hour yet.</p>;
  return (
    <section class="charts two" aria-labelledby="hour">
      <h2 id="hour">The last hour</h2>
      <Chart title="Given and owed" note="Weighted tokens per second" times={times} lines={lines.service} format={count} />
      <Chart title="Time to first token" note="Median of the last minute; who still waits counts" times={times} lines={lines.ttft} format={seconds} />
      <Chart title="Requests" note="Waiting and running" times={times} lines={lines.requests} format={count} />
      <Chart title="Output" note="Tokens per second, of requests that ended" times={times} lines={lines.tokens} format={count} />
    </section>
  );
}

/** Behind several models, a line for each. */
function ttftOf([own, ...models]: Series[]): Line[] {
  if (models.length === 0) return [{ label: "time to first token", colour: 2, values: own!.ttft_s }];
  const colours = coloursOf(models.map((one) => one.model));
  return models.slice(0, COLOURS).map((one, at) => ({ label: one.model, colour: colours[at]!, href: hrefOfModel(one.model), values: one.ttft_s }));
}

function AtReplicas({ replicas }: { replicas: ClientAtReplica[] }) {
  return (
    <section aria-labelledby="at-replicas">
      <h2 id="at-replicas">At replicas</h2>
      <p class="note">By their last reports. Service since the replica's start, and deficit, in weighted tokens</p>
      <Scroll label="Table of the client at replicas">
        <table>
          <thead>
            <tr>
              <th scope="col">Replica</th>
              <th scope="col">In the batch</th>
              <th scope="col">In the queue</th>
              <th scope="col">Service</th>
              <th scope="col">Deficit</th>
            </tr>
          </thead>
          <tbody>
            {replicas.map((at) => (
              <tr key={`${at.model} ${at.replica}`}>
                <th scope="row">{at.model ? `${at.model}: ${at.replica}` : at.replica}</th>
                <td>{count(at.running)}</td>
                <td>{count(at.waiting)}</td>
                <td>{count(at.service)}</td>
                <td>{count(at.deficit)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </section>
  );
}

export function titleOf(identity: string, state: ConsoleState | undefined): string {
  const client = state?.clients.find((one) => one.identity === identity);
  return client ? nameOf(client) : identity.split("/").slice(1).join("/");
}
