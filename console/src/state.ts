// The router's answers, as in contract/evenkeel_contract/consolestate.py and adminstate.py.

export interface Figures {
  service_per_s: number;
  owed_per_s: number;
  output_tokens_per_s: number;
  ttft_s: number | null;
  itl_s: number | null;
  hit_rate: number | null;
  qoe: number | null;
  waiting: number;
  running: number;
}

export interface ClientNow extends Figures {
  identity: string;
  tenant: string;
  client: string;
  weight: string;
  words: string;
  level: Level;
  fair: boolean;
  hurts: boolean;
  ttft_p50_s: number | null;
  ttft_p95_s: number | null;
  oldest_s: number;
  held: number;
  failed: number;
  share: number | null;
  owed: number | null;
  given_over_owed: number | null;
  requested_per_s: number;
  lead_s: number;
  in_flight: number;
  requests: number;
  errors: number;
  causes: Record<string, number>;
}

export interface ModelNow extends Figures {
  model: string;
  service: string;
  level: Level | "";
  verdict: string;
  ttft_p50_s: number | null;
  ttft_p95_s: number | null;
  oldest_s: number;
  failed: number;
  replicas: number | null;
  routable: number | null;
}

export interface ReplicaNow {
  name: string;
  model: string;
  joined: boolean;
  loads: boolean;
  unready_reason: string;
  routable: boolean;
  unschedulable_reason: string;
  suspicion: string;
  silent_s: number;
  failing: number;
  in_flight: number;
  here: { unanswered: number; begun: number; lost: number };
  prefix_blocks: number;
  policy: string;
  report_age_s: number | null;
  service_per_s: number;
  hit_rate: number | null;
}

export interface Condition {
  alert: string;
  problem: boolean;
  message: string;
  about: string;
  runbook: string;
}

export type Level = "Out" | "HeldUp" | "Unfair" | "Unjudged" | "Fair" | "Nothing";

export interface LimitNow {
  tenant: string;
  kind: string;
  limit: number;
  burst: number;
  used: number;
  resets_s: number;
}

export interface FleetState {
  window_s: number;
  backlogged: number;
  share_error: number;
  lead_s: number;
  jain: number;
}

export interface LedgerState {
  router: string;
  closed_totals_version: number;
  open_accounts: number;
  clients: number;
  store: string;
  store_error: string;
  uncounted: string[];
}

export interface PeerState {
  name: string;
  answer_age_s: number | null;
  error: string;
}

export interface ConsoleState {
  version: number;
  scope: "service" | "tenant";
  tenant: string;
  namespace: string;
  service: string;
  model: string;
  models: ModelNow[];
  time_unix_s: number;
  uptime_s: number;
  router: string;
  window_s: number;
  draining: boolean;
  verdict: string;
  level: Level;
  fair: boolean;
  total: Figures;
  ttft_p50_s: number | null;
  ttft_p95_s: number | null;
  waiting: number;
  oldest_s: number;
  errors: Record<string, number>;
  limits: LimitNow[];
  clients: ClientNow[];
  fleet_policy: string;
  held: number;
  fleet: FleetState | null;
  replicas: ReplicaNow[];
  conditions: Condition[];
  ledger: LedgerState | null;
  peers: PeerState[];
}

export type Column = (number | null)[];

export interface Series {
  identity: string;
  tenant: string;
  client: string;
  model: string;
  service_per_s: Column;
  owed_per_s: Column;
  output_tokens_per_s: Column;
  ttft_s: Column;
  waiting: Column;
  running: Column;
}

export interface ClientAtReplica {
  replica: string;
  model: string;
  credit: number;
  deficit: number;
  waiting: number;
  running: number;
  service: number;
}

export interface HourState {
  version: number;
  router: string;
  times_unix_s: number[];
  series: Series[];
  replicas: ClientAtReplica[];
}

export interface RequestNow {
  request_id: string;
  client: string;
  name: string;
  path: string;
  state: "waiting" | "running" | "ended";
  begun_unix_s: number;
  duration_s: number;
  ttft_s: number | null;
  held_s: number;
  gate_s: number;
  engine_s: number;
  itl_s: number | null;
  input_tokens: number;
  cached_tokens: number;
  output_tokens: number;
  model: string;
  replica: string;
  attempts: number;
  status: number;
  outcome: string;
  streamed: boolean;
  trace_id: string;
}

export interface RequestsState {
  version: number;
  router: string;
  kept: number;
  requests: RequestNow[];
  words: string[];
  ahead: { name: string; requests: number; tokens: number }[];
  ahead_more: number;
}

export function nameOf(client: { tenant: string; client: string }): string {
  return `${client.tenant}/${client.client || "(other clients)"}`;
}
