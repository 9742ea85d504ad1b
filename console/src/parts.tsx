// Small parts that both pages use.

import type { ComponentChildren } from "preact";
import { count, percent, seconds } from "./format";
import type { ConsoleState, Figures } from "./state";

export function Cards({ figures, owed = false }: { figures: Figures; owed?: boolean }) {
  return (
    <dl class="cards">
      <Card term="Service" unit="weighted tokens/s" value={count(figures.service_per_s)} />
      {owed && <Card term="Owed" unit="weighted tokens/s" value={count(figures.owed_per_s)} />}
      <Card term="Output" unit="tokens/s" value={count(figures.output_tokens_per_s)} />
      <Card term="Time to first token" unit="mean" value={seconds(figures.ttft_s)} />
      <Card term="Running" unit="requests" value={count(figures.running)} />
      <Card term="Waiting" unit="requests" value={count(figures.waiting)} />
      <Card term="Hit rate" unit="of input tokens" value={percent(figures.hit_rate)} />
    </dl>
  );
}

function Card({ term, unit, value }: { term: string; unit: string; value: string }) {
  return (
    <div class="card">
      <dt>{term}</dt>
      <dd>
        <span class="value">{value}</span> <span class="unit">{unit}</span>
      </dd>
    </div>
  );
}

/** A state in words, with a colour and a sign that repeat it. */
export function Pill({ kind, children }: { kind: "good" | "bad" | "warn" | "idle"; children: ComponentChildren }) {
  return <span class={`pill ${kind}`}>{children}</span>;
}

/** A table that scrolls sideways on a narrow screen, also with the keyboard. */
export function Scroll({ label, children }: { label: string; children: ComponentChildren }) {
  return (
    <div class="scroll" role="region" aria-label={label} tabIndex={0}>
      {children}
    </div>
  );
}

export function Definitions({ state }: { state: ConsoleState }) {
  return (
    <details class="definitions">
      <summary>What the figures mean</summary>
      <dl>
        <dt>Service</dt>
        <dd>
          Weighted tokens that the client received: computed input tokens and output tokens, each times its weight.
          Cached input tokens are free.
        </dd>
        <dt>Owed</dt>
        <dd>
          The clients that wait at the same time are owed the service that they receive together, by their weights. A
          client without a waiting request is owed what it receives.
        </dd>
        <dt>Given over owed</dt>
        <dd>Service over owed service of the last minute, while the client waited. Below 80% it was given too little.</dd>
        <dt>Share</dt>
        <dd>The client's part of the service of {state.scope === "tenant" ? "your clients" : "all clients"}.</dd>
        <dt>Running, waiting</dt>
        <dd>Requests in the batches of replicas, and requests that wait at replicas or at this router's gates.</dd>
        <dt>Time to first token</dt>
        <dd>Mean from the request's head to its first event, of requests that ended in the window.</dd>
        <dt>Hit rate</dt>
        <dd>The cached part of the input tokens.</dd>
        <dt>Quality of experience (QoE)</dt>
        <dd>
          From 0 to 1: how far the text of a stream kept ahead of its reader. Mean of the streams that ended in the
          window. It is measured where the service has <code>router.qoe</code>.
        </dd>
      </dl>
      <p>
        Figures without another time are of the last {Math.max(1, Math.round(state.window_s))} seconds. Service, owed
        service, running and waiting requests are of all routers. Output, times, hit rates, quality of experience and errors are of this router.
      </p>
    </details>
  );
}
