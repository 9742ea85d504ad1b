// What tenants used of their limits, and when it is free again.

import { count, duration, percent } from "./format";
import { Scroll } from "./parts";
import type { LimitNow } from "./state";

const KIND: Record<string, string> = {
  requests: "requests per minute",
  tokens: "tokens per minute",
  concurrent: "requests in flight",
};

export function Limits({ limits, named }: { limits: LimitNow[]; named: boolean }) {
  if (limits.length === 0) return null;
  return (
    <section aria-labelledby="limits">
      <h2 id="limits">Limits</h2>
      <p class="note">
        At this router, which has the part of each limit that its requests need. A limit per minute fills again all the time, up to the number
        at once. Used is the part of that number that is missing now. A request that finds all of it used gets 429.
      </p>
      <Scroll label="Table of limits">
        <table>
          <thead>
            <tr>
              {named && <th scope="col">Tenant</th>}
              <th scope="col">Limit</th>
              <th scope="col">At once</th>
              <th scope="col">Used now</th>
              <th scope="col">Free again in</th>
            </tr>
          </thead>
          <tbody>
            {limits.map((one) => (
              <tr key={one.tenant + one.kind} class={one.used > 0.99 ? "short" : ""}>
                {named && <th scope="row">{one.tenant.split("/").slice(1).map(decodeURIComponent).join("/")}</th>}
                <th scope="row">
                  {count(one.limit)} {KIND[one.kind] ?? one.kind}
                </th>
                <td>{count(one.burst)}</td>
                <td>{percent(one.used)}</td>
                <td>{one.kind === "concurrent" ? "when they end" : one.resets_s < 0.5 ? "now" : duration(one.resets_s)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </section>
  );
}
