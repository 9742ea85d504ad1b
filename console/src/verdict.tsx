// The head of the page: whether anybody is served, is held up, and gets a fair share; and which alerts are to be seen to.

import { count, duration, exactClock, percent } from "./format";
import { AlertName, PartLink } from "./parts";
import type { Reading } from "./read";
import type { ConsoleState, Level } from "./state";

const SIGN: Record<Level, string> = { Out: "✕", HeldUp: "!", Unfair: "!", Unjudged: "–", Fair: "✓", Nothing: "–" };
const SPOKEN: Record<Level, string> = {
  Out: "No client is served.",
  HeldUp: "Requests are held up.",
  Unfair: "The service is unfair.",
  Unjudged: "Clients wait that are not judged yet.",
  Fair: "The service is fair.",
  Nothing: "There is nothing to judge.",
};

export function Verdict({ now }: { now: Reading<ConsoleState> }) {
  const state = now.value!;
  const { fleet, level } = state;
  if (now.fault) return <Silent now={now} />;
  return (
    <section class={`verdict ${level.toLowerCase()}`} aria-label="Verdict">
      <p class="sentence">
        <span class="sign" aria-hidden="true">
          {SIGN[level]}
        </span>
        {state.verdict}
      </p>
      <p class="note">
        Over the last minute.
        {state.oldest_s >= 1 &&
          ` ${plural(state.waiting, "request waits", "requests wait")} at this router, the oldest for ${duration(state.oldest_s)}.`}
        {fleet &&
          (level === "Fair" || level === "Unfair") &&
          ` ${plural(fleet.backlogged, "client waits", "clients wait")} at replicas. Share error ${percent(fleet.share_error)}, ` +
            `lead ${fleet.lead_s.toFixed(1)} s, Jain's index ${fleet.jain.toFixed(3)}.`}
      </p>
      <p class="hidden" role="status">
        {SPOKEN[level]}
      </p>
    </section>
  );
}

/** What was true before says nothing about now. */
function Silent({ now }: { now: Reading<ConsoleState> }) {
  return (
    <section class="verdict nothing" aria-label="Verdict">
      <p class="sentence">
        <span class="sign" aria-hidden="true">
          –
        </span>
        Nothing is known since {exactClock(now.at)}.
      </p>
      <p class="note">Before that: {now.value!.verdict}</p>
    </section>
  );
}

/** Conditions that are true, as links to the part of the page that shows more. */
export function Firing({ state }: { state: ConsoleState }) {
  const firing = state.conditions.filter((condition) => condition.problem);
  if (firing.length === 0) return null;
  return (
    <nav class="firing" aria-label="Problems">
      <ul>
        {firing.map(({ alert, message, about, runbook }) => (
          <li key={alert + message}>
            <PartLink id={about || "conditions"}>{message}</PartLink> <AlertName alert={alert} runbook={runbook} />
          </li>
        ))}
      </ul>
    </nav>
  );
}

export function plural(number: number, one: string, many: string): string {
  return `${count(number)} ${number === 1 ? one : many}`;
}
