// A chart over time, with a legend that is also a table of its figures.

import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { MISSING, clock, count } from "./format";
import type { Column } from "./state";

const HEIGHT = 180;
const LEAST_SPAN_S = 120;
/** Distances between the lines of a grid of counts, so that no two lines have the same label. */
const WHOLE = [1, 2, 5].flatMap((digit) => [...Array(10).keys()].map((zeros) => digit * 10 ** zeros)).sort((a, b) => a - b);

export interface Line {
  label: string;
  values: Column;
  /** Number of a colour of the palette: the style sheet has `--line-0` and so on. */
  colour: number | "rest" | "owed";
  /** The page of the client. */
  href?: string;
}

interface Props {
  title: string;
  note: string;
  /** What a line is. */
  each?: string;
  times: number[];
  lines: Line[];
  format: (value: number) => string;
  /** Draw each line on top of the sum of those before it. */
  stacked?: boolean;
}

export function Chart({ title, note, each = "figure", times, lines, format, stacked = false }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [dark, setDark] = useState(matchMedia("(prefers-color-scheme: dark)").matches);
  const [cursor, setCursor] = useState<number | null>(null);
  const shape = lines.map((line) => `${line.label}=${line.colour}`).join("\n");

  useEffect(() => {
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setDark(scheme.matches);
    scheme.addEventListener("change", changed);
    return () => scheme.removeEventListener("change", changed);
  }, []);

  useEffect(() => {
    const box = place.current!;
    const options = optionsOf(box.clientWidth, lines, format, stacked, setCursor);
    plot.current = new uPlot(options, dataOf(times, lines, stacked), box);
    const observer = new ResizeObserver(() => {
      plot.current?.setSize({ width: box.clientWidth, height: HEIGHT });
    });
    observer.observe(box);
    return () => {
      observer.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape, dark, stacked]);

  useEffect(() => plot.current?.setData(dataOf(times, lines, stacked)), [times, lines]);

  const at = cursor === null || cursor >= times.length ? times.length - 1 : cursor;
  return (
    <figure class="chart">
      <figcaption>
        <h3>{title}</h3>
        <p class="note">{note}</p>
      </figcaption>
      <div class="plot" ref={place} aria-hidden="true" />
      <table class="legend">
        <thead>
          <tr>
            <th scope="col">
              {cursor === null || at < 0 ? each : clock(times[at]!)}
            </th>
            <th scope="col">{cursor === null ? "now" : "then"}</th>
            <th scope="col">mean</th>
            <th scope="col">highest</th>
          </tr>
        </thead>
        <tbody>
          {lines.map((line) => (
            <tr key={line.label}>
              <th scope="row">
                <span class={`swatch line-${line.colour}`} aria-hidden="true" />
                {line.href ? <a href={line.href}>{line.label}</a> : line.label}
              </th>
              <td>{shown(line.values[at], format)}</td>
              <td>{shown(mean(line.values), format)}</td>
              <td>{shown(highest(line.values), format)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </figure>
  );
}

function shown(value: number | null | undefined, format: (value: number) => string): string {
  return value === null || value === undefined ? MISSING : format(value);
}

function onlySample(values: Column): number[] | null {
  const known = values.flatMap((value, at) => (value === null ? [] : [at]));
  return known.length === 1 ? known : null;
}

function mean(values: Column): number | null {
  const known = values.filter((value) => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}

function highest(values: Column): number | null {
  return values.reduce<number | null>(
    (most, value) => (value !== null && (most === null || value > most) ? value : most),
    null,
  );
}

/** Stacked lines are drawn from the highest sum down, each over the area of the one before. */
function dataOf(times: number[], lines: Line[], stacked: boolean): uPlot.AlignedData {
  if (!stacked) return [times, ...lines.map((line) => line.values)];
  const sums: number[][] = [];
  let below: number[] = times.map(() => 0);
  for (const line of lines) {
    below = below.map((sum, at) => sum + (line.values[at] ?? 0));
    sums.push(below);
  }
  return [times, ...sums.reverse()];
}

function optionsOf(
  width: number,
  lines: Line[],
  format: (value: number) => string,
  stacked: boolean,
  setCursor: (at: number | null) => void,
): uPlot.Options {
  const style = getComputedStyle(document.documentElement);
  const colour = (name: string) => style.getPropertyValue(name).trim();
  const ink = colour("--quiet");
  const grid = { stroke: colour("--grid"), width: 1 };
  const font = `12px ${style.fontFamily}`;
  const drawn = stacked ? [...lines].reverse() : lines;
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { show: !stacked } },
    hooks: { setCursor: [(plot) => setCursor(plot.cursor.idx ?? null)] },
    scales: {
      x: { time: true, range: (_, low, high) => [Math.min(low, high - LEAST_SPAN_S), high] },
      y: { range: (_, __, high) => [0, high > 0 ? high * 1.08 : 1] },
    },
    axes: [
      {
        stroke: ink,
        font,
        grid,
        ticks: { show: false },
        size: 28,
        values: (_, splits) => splits.map(clock),
        incrs: [1, 2, 5, 10, 15, 30, 60].map((minutes) => 60 * minutes),
        space: 60,
      },
      {
        stroke: ink,
        font,
        grid,
        ticks: { show: false },
        size: 62,
        ...(format === count ? { incrs: WHOLE } : {}),
        values: (_, splits) => splits.map((value) => (value === 0 ? "0" : format(value))),
      },
    ],
    series: [
      {},
      ...drawn.map((line) => {
        const stroke = colour(`--line-${line.colour}`);
        return {
          stroke,
          width: stacked ? 0 : 2,
          // A single sample makes no line.
          points: { show: false, filter: () => (stacked ? null : onlySample(line.values)), size: 6, fill: stroke },
          spanGaps: !stacked,
          ...(stacked ? { fill: stroke } : {}),
          ...(line.colour === "owed" ? { dash: [6, 4] } : {}),
        };
      }),
    ],
  };
}
