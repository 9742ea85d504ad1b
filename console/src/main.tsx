// The console of a router: reads its answers and shows them. The token or key stays in this tab.

import "uplot/dist/uPlot.min.css";
import "./console.css";
import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ClientPage, titleOf } from "./client";
import { duration, exactClock } from "./format";
import { Overview } from "./overview";
import { PartLink, Pill } from "./parts";
import { type Reading, useReading } from "./read";
import { RequestPage, Requests } from "./requests";
import { type Place, hrefOfClients, hrefOfModel, hrefOfRequests, usePlace } from "./route";
import type { ConsoleState, HourState, ModelNow, RequestsState } from "./state";

const NOW_MS = 2000;
const HOUR_MS = 10_000;
const STORED = "evenkeel-console-key";

function App() {
  const [key, setKey] = useState(sessionStorage.getItem(STORED) ?? "");
  const place = usePlace();
  const client = place.page === "client" ? place.of : "";
  const { model } = place;
  const now = useReading<ConsoleState>(pathOf("/v1/console", { model }), NOW_MS, key);
  const state = now.value;
  const charts = place.page === "all" || place.page === "client";
  const hourPath = pathOf("/v1/console/hour", { client, model });
  const hour = useReading<HourState>(state && charts ? hourPath : "", HOUR_MS, key, state?.router);
  const requestsPath = pathOf("/v1/console/requests", { id: place.page === "request" ? place.of : "", model });
  const requests = useReading<RequestsState>(state && !charts ? requestsPath : "", NOW_MS, key, state?.router);
  // The selector stays while the figures of another model are read: it has the focus.
  const models = useRef<ModelNow[]>([]);
  if (state) models.current = state.models;

  function use(entered: string): void {
    if (entered) sessionStorage.setItem(STORED, entered);
    else sessionStorage.removeItem(STORED);
    setKey(entered);
  }

  if (now.refused) return <SignIn refused={key !== ""} use={use} />;
  return (
    <>
      <Header now={now} models={models.current} chosen={model} signedIn={key !== ""} signOut={() => use("")} />
      <main id="main" class={now.fault ? "stale" : ""}>
        <Title place={place} state={state} drawn={hour.value !== undefined} />
        {now.unknown && <NoModel now={now} />}
        {now.fault && !now.unknown && <NoAnswer now={now} />}
        {state && state.draining && <p class="notice">This router is shutting down. New requests go to others.</p>}
        {!state && !now.fault && <p>Reading…</p>}
        {state && place.page === "client" && <ClientPage identity={client} state={state} hour={hour.value} />}
        {state && place.page === "all" && <Overview now={now} hour={hour.value} />}
        {state && place.page === "requests" && (requests.value ? <Requests key={place.of} state={requests.value} failedOnly={place.of === "failed"} /> : <p>Reading…</p>)}
        {state && place.page === "request" && (requests.value ? <RequestPage state={requests.value} /> : <p>Reading…</p>)}
        {state && state.uptime_s < 3600 && (
          <p class="note">This router has run for {duration(state.uptime_s)}. Its history begins at its start.</p>
        )}
      </main>
    </>
  );
}

/** A path with those parts of a query that are not empty. */
function pathOf(path: string, query: Record<string, string>): string {
  const given = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
  return given.size ? `${path}?${given}` : path;
}

interface HeaderProps {
  now: Reading<ConsoleState>;
  models: ModelNow[];
  /** The model that is shown; empty: all. */
  chosen: string;
  signedIn: boolean;
  signOut: () => void;
}

function Header({ now, models, chosen, signedIn, signOut }: HeaderProps) {
  const state = now.value;
  return (
    <header>
      <a class="brand" href={hrefOfClients()}>
        <img src="icon.svg" alt="" width="28" height="28" /> Evenkeel
      </a>
      {state && (
        <span class="service">
          <strong>
            {state.namespace}
            {state.service && `/${state.service}`}
          </strong>{" "}
          {models.length === 0 && <span>{state.model}</span>} <span>{state.scope === "tenant" ? `tenant ${state.tenant}` : state.fleet_policy}</span>
        </span>
      )}
      {models.length > 0 && <Models models={models} chosen={chosen} />}
      {state && (
        <nav class="places" aria-label="Pages">
          <a href={hrefOfClients()}>Clients</a>
          <a href={hrefOfRequests()}>Requests</a>
          {state.scope === "service" && <PartLink id="replicas">Replicas</PartLink>}
          {state.limits.length > 0 && <PartLink id="limits">Limits</PartLink>}
        </nav>
      )}
      <span class="live">
        <Pill kind={now.fault ? "bad" : state ? "good" : "idle"}>{now.fault ? "no answer" : state ? "live" : "…"}</Pill>
        {signedIn && (
          <button type="button" onClick={signOut}>
            Sign out
          </button>
        )}
      </span>
    </header>
  );
}

/** Chooses the model of every page. The choice is in the address. */
function Models({ models, chosen }: { models: ModelNow[]; chosen: string }) {
  const known = models.some(({ model }) => model === chosen);
  return (
    <span class="model">
      <label for="model">Model</label>{" "}
      <select id="model" value={chosen} onChange={(event) => (location.hash = hrefOfModel(event.currentTarget.value))}>
        <option value="">All models</option>
        {models.map(({ model }) => (
          <option key={model} value={model}>
            {model}
          </option>
        ))}
        {chosen && !known && <option value={chosen}>{chosen}</option>}
      </select>
    </span>
  );
}

/** The heading of the page. It gets the focus when another page opens, so that screen readers announce it. A part of a page moves down
 * when the charts above it are drawn, so it is scrolled to once more then. */
function Title({ place, state, drawn }: { place: Place; state: ConsoleState | undefined; drawn: boolean }) {
  const heading = useRef<HTMLHeadingElement>(null);
  const opened = useRef({ at: place.page + place.of, drawn: false });
  const title = titleOfPlace(place, state);
  useEffect(() => {
    document.title = [title, place.model, "Evenkeel"].filter(Boolean).join(" · ");
  }, [title, place.model]);
  useEffect(() => {
    const at = place.page + place.of;
    const another = opened.current.at !== at;
    if (!another && (opened.current.drawn || !drawn)) return;
    opened.current = { at, drawn };
    const part = place.page === "all" && place.of ? document.getElementById(place.of) : null;
    if (part) {
      part.scrollIntoView({ block: "start" });
      part.tabIndex = -1;
      part.focus();
      return;
    }
    if (!another) return;
    window.scrollTo(0, 0);
    heading.current?.focus();
  }, [place.page, place.of, drawn]);
  return (
    <div class="title">
      {place.page === "client" && <a href={hrefOfClients()}>← All clients</a>}
      {place.page === "request" && <a href={hrefOfRequests()}>← Requests</a>}
      <h1 ref={heading} tabIndex={-1}>
        {title}
      </h1>
    </div>
  );
}

function titleOfPlace(place: Place, state: ConsoleState | undefined): string {
  if (place.page === "client") return titleOf(place.of, state);
  if (place.page === "requests") return "Requests";
  if (place.page === "request") return `Request ${place.of}`;
  return state?.scope === "tenant" ? `Tenant ${state.tenant}` : "Who gets what";
}

function NoModel({ now }: { now: Reading<ConsoleState> }) {
  return (
    <p class="notice" role="alert">
      {now.fault} <a href={hrefOfModel("")}>Show all models</a>
    </p>
  );
}

function NoAnswer({ now }: { now: Reading<ConsoleState> }) {
  return (
    <p class="notice" role="alert">
      The router does not answer ({now.fault}). The console tries again every two seconds.
      {now.at > 0 && ` The figures are from ${exactClock(now.at)}.`}
    </p>
  );
}

function SignIn({ refused, use }: { refused: boolean; use: (key: string) => void }) {
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus(), []);
  return (
    <main class="sign-in">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          use(field.current!.value.trim());
        }}
      >
        <h1>Evenkeel console</h1>
        {refused && (
          <p class="notice" role="alert">
            The router refused this token or key.
          </p>
        )}
        <label for="key">Admin token or API key</label>
        <input id="key" ref={field} type="password" autocomplete="off" required />
        <button type="submit">Open</button>
        <p class="note">
          The admin port takes the admin token, and shows the whole service. The port for requests takes an API key of a
          tenant, and shows that tenant only. The key stays in this tab.
        </p>
      </form>
    </main>
  );
}

render(<App />, document.getElementById("app")!);
