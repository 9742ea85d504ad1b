// Numbers as people read them.

export const MISSING = "–";
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const EXACT_CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });

export function count(value: number): string {
  return Math.abs(value) < 100_000 ? WHOLE.format(value) : SHORT.format(value);
}

export function percent(part: number | null): string {
  return part === null ? MISSING : `${Math.round(100 * part)}%`;
}

/** A part of 1, as `evenkeel top` shows quality of experience. */
export function ratio(part: number | null): string {
  return part === null ? MISSING : part.toFixed(2);
}

export function seconds(value: number | null): string {
  if (value === null) return MISSING;
  if (value < 0.9995) return `${Math.round(1000 * value)} ms`;
  return value < 10 ? `${value.toFixed(2)} s` : `${value.toFixed(1)} s`;
}

/** A duration in the largest unit that fits. */
export function duration(value: number): string {
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return value < 172_800 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86_400)} days`;
}

export function clock(unixS: number): string {
  return CLOCK.format(1000 * unixS);
}

export function exactClock(unixMs: number): string {
  return EXACT_CLOCK.format(unixMs);
}

/** The window of rates and means, in words. */
export function lastSeconds(window_s: number): string {
  return `the last ${Math.max(1, Math.round(window_s))} s`;
}
