// A client keeps its colour for as long as the tab is open, also when other clients are drawn.

export const COLOURS = 7;
const STORED = "evenkeel-console-colours";

const known: Record<string, number> = read();

function read(): Record<string, number> {
  try {
    return JSON.parse(sessionStorage.getItem(STORED) ?? "{}") as Record<string, number>;
  } catch {
    return {};
  }
}

/** Number of a colour of the palette for each client that is drawn together; two of them never share one. */
export function coloursOf(identities: string[]): number[] {
  const used = new Set<number>();
  const given = new Map<string, number>();
  for (const identity of identities) {
    const colour = known[identity];
    if (colour !== undefined && !used.has(colour)) {
      used.add(colour);
      given.set(identity, colour);
    }
  }
  const owned = new Set(Object.values(known));
  for (const identity of identities) {
    if (given.has(identity)) continue;
    const free = [...Array(COLOURS).keys()].filter((colour) => !used.has(colour));
    // One that no client has, before one of a client that is not drawn now.
    const colour = free.find((one) => !owned.has(one)) ?? free[0] ?? 0;
    used.add(colour);
    owned.add(colour);
    given.set(identity, colour);
    known[identity] ??= colour;
  }
  sessionStorage.setItem(STORED, JSON.stringify(known));
  return identities.map((identity) => given.get(identity)!);
}
