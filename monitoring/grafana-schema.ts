// What `tests/console/test_dashboard_schema.py` checks the dashboards against: Grafana's own schema, with the options of
// the two kinds of panel that they have.
import type { Options as StatOptions } from "@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen";
import type { Options as SeriesOptions } from "@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";
import type { Dashboard as Grafana, Panel, RowPanel } from "@grafana/schema/dist/esm/raw/dashboard/x/Dashboard_types.gen";

// JSON has the values of string enums, and leaves out what has a default.
type Json<T> = T extends string ? `${T}` : T extends object ? { [K in keyof T]?: Json<T[K]> } : T;

// As the Prometheus data source reads it (public/app/plugins/datasource/prometheus/dataquery.cue).
interface Query {
  refId: string;
  datasource: Json<Panel["datasource"]>;
  expr: string;
  legendFormat: string;
}

interface Of<Kind extends string, Options> extends Omit<Json<Panel>, "type" | "options" | "targets"> {
  type: Kind;
  id: number;
  title: string;
  gridPos: { x: number; y: number; w: number; h: number };
  options: Json<Options>;
  targets: Query[];
}

export interface Dashboard extends Omit<Json<Grafana>, "panels"> {
  uid: string;
  title: string;
  schemaVersion: number;
  panels: (Of<"timeseries", SeriesOptions> | Of<"stat", StatOptions> | Json<RowPanel> & { type: "row" })[];
}
