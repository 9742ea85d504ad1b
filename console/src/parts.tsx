// Small parts that both pages use.

import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { count, duration, lastSeconds, percent, seconds } from "./format";
import { hrefOfFailed, hrefOfPart } from "./route";
import type { ConsoleState, Figures } from "./state";

interface CardsProps {
  figures: Figures;
  latency: { ttft_p50_s: number | null; ttft_p95_s: number | null };
  /** Whose latency it is. */
  whose: string;
  waiting: number;
  oldest_s: number;
  /** Seconds that rates and means cover. */
  window_s: number;
  owed?: boolean;
}

export function Cards({ figures, latency, whose, waiting, oldest_s, window_s, owed = false }: CardsProps) {
  const last = lastSeconds(window_s);
  return (
    <dl class="cards">
      <Card term="Time to first token" unit={`median of the last minute${whose}; p95 ${seconds(latency.ttft_p95_s)}`} value={seconds(latency.ttft_p50_s)} />
      <Card term="Waiting" unit={oldest_s >= 1 ? `requests; the oldest for ${duration(oldest_s)}` : "requests"} value={count(waiting)} />
      <Card term="Running" unit="requests" value={count(figures.running)} />
      <Card term="Between tokens" unit={`mean of ${last}`} value={seconds(figures.itl_s)} />
      <Card wide term="Service" unit={`weighted tokens/s, ${last}`} value={count(figures.service_per_s)} />
      {owed && <Card wide term="Owed" unit={`weighted tokens/s, ${last}`} value={count(figures.owed_per_s)} />}
      <Card wide term="Output" unit={`tokens/s, ${last}`} value={count(figures.output_tokens_per_s)} />
      <Card wide term="Hit rate" unit={`of input tokens, ${last}`} value={percent(figures.hit_rate)} />
    </dl>
  );
}

/** `wide`: shown on wide screens only. */
function Card({ term, unit, value, wide = false }: { term: string; unit: string; value: string; wide?: boolean }) {
  return (
    <div class={wide ? "card wide" : "card"}>
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

/** A link to a part of the first page. The address may have it already, after the reader scrolled away. */
export function PartLink({ id, children }: { id: string; children: ComponentChildren }) {
  return (
    <a href={hrefOfPart(id)} onClick={() => document.getElementById(id)?.scrollIntoView({ block: "start" })}>
      {children}
    </a>
  );
}

/** A table that scrolls sideways on a narrow screen, also with the keyboard. It fades at an edge beyond which there is more. */
export function Scroll({ label, children }: { label: string; children: ComponentChildren }) {
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const { current } = box;
    if (!current) return;
    const mark = () => {
      const right = current.scrollWidth - current.clientWidth - current.scrollLeft;
      current.classList.toggle("more-left", current.scrollLeft > 1);
      current.classList.toggle("more-right", right > 1);
    };
    const sizes = new ResizeObserver(mark);
    sizes.observe(current);
    for (const child of current.children) sizes.observe(child);
    current.addEventListener("scroll", mark, { passive: true });
    return () => {
      sizes.disconnect();
      current.removeEventListener("scroll", mark);
    };
  }, []);
  return (
    <div class="scroll" role="region" aria-label={label} tabIndex={0} ref={box}>
      {children}
    </div>
  );
}

interface FindProps {
  title: string;
  value: string;
  change: (text: string) => void;
  enter: () => void;
}

/** A field that narrows a table while it is typed; Enter opens what it names. */
export function Find({ title, value, change, enter }: FindProps) {
  return (
    <form
      role="search"
      onSubmit={(event) => {
        event.preventDefault();
        enter();
      }}
    >
      <label>
        {title} <input type="search" value={value} onInput={(event) => change(event.currentTarget.value)} />
      </label>
    </form>
  );
}

interface PagesProps {
  of: string;
  page: number;
  size: number;
  number: number;
  open: (page: number) => void;
}

export function Pages({ of, page, size, number, open }: PagesProps) {
  if (number <= size) return null;
  return (
    <nav class="pages" aria-label={`Pages of ${of}`}>
      <button type="button" disabled={page === 0} onClick={() => open(page - 1)}>
        Previous
      </button>
      <span>
        {page * size + 1} to {Math.min(number, (page + 1) * size)} of {number}
      </span>
      <button type="button" disabled={(page + 1) * size >= number} onClick={() => open(page + 1)}>
        Next
      </button>
    </nav>
  );
}

/** How many requests failed, by cause. `linked`: they lead to these requests. */
export function Causes({ causes, linked = false }: { causes: Record<string, number>; linked?: boolean }) {
  const found = Object.entries(causes).sort(([, one], [, other]) => other - one);
  if (found.length === 0) return <>none</>;
  return (
    <span class="causes">
      {found.map(([cause, number]) => {
        const pill = (
          <Pill key={cause} kind="warn">
            {cause.replaceAll("_", " ")} {count(number)}
          </Pill>
        );
        return linked ? (
          <a key={cause} href={hrefOfFailed()}>
            {pill}
          </a>
        ) : (
          pill
        );
      })}
    </span>
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
        <dt>Given of owed</dt>
        <dd>
          Service over owed service of the last minute, while the client waited. Below 80% it was given too little. A
          client that took more meanwhile hurts the others.
        </dd>
        <dt>Share</dt>
        <dd>
          {state.scope === "tenant"
            ? "The client's part of the service of your clients, or of what they were owed together, where that was more."
            : "The client's part of the service of all clients."}
        </dd>
        <dt>Running, waiting</dt>
        <dd>
          A request at this router waits until its answer begins, wherever it is: held by the router because no replica takes it, at a gate, or
          in an engine. Then it runs. The oldest is the one that waits for the longest time.
        </dd>
        <dt>Time to first token</dt>
        <dd>
          From the request's head to its first content: the median and the 95th percentile (p95) of the last minute. A
          request that still waits counts with its age, once that is above the median of the others. The figure at the head is of clients within
          their share: who asks for more causes its own waiting.
        </dd>
        <dt>Between tokens</dt>
        <dd>Mean time between two tokens of the streams that ended in the window (inter-token latency).</dd>
        <dt>Failed</dt>
        <dd>
          Requests of the last minute that the service failed, or that the client gave up: it left after two seconds or more without an answer, or
          within an answer that had stopped. Not those that broke a limit or were invalid.
        </dd>
        <dt>Hit rate</dt>
        <dd>The cached part of the input tokens.</dd>
        <dt>Quality of experience (QoE)</dt>
        <dd>
          From 0 to 1: how far the text of a stream kept ahead of its reader. Mean of the streams that ended in the
          window. It is measured where the service has <code>router.qoe</code>.
        </dd>
      </dl>
      <p>
        Figures without another time are of {lastSeconds(state.window_s)}. Service and owed service are of all routers. Requests, output, times,
        hit rates and quality of experience are of this router.
      </p>
      {state.models.length > 0 && !state.model && (
        <p>
          Of all models together: service is the sum of their weighted tokens. The words and times of a client are those of the model in which it
          fares worst. Means are shown for each model only.
        </p>
      )}
    </details>
  );
}

/** The name of an alert, which leads to its runbook where the router knows it. */
export function AlertName({ alert, runbook }: { alert: string; runbook: string }) {
  if (!alert) return null;
  const name = <code>{alert}</code>;
  return runbook ? (
    <a href={runbook} target="_blank" rel="noreferrer">
      {name}
    </a>
  ) : (
    name
  );
}
