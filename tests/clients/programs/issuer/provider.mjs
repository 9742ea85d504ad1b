// An issuer of tokens (https://github.com/panva/node-oidc-provider): `node provider.mjs configuration.json KEYS`.
//
// KEYS is a file with the private keys as a JSON Web Key Set; the first one signs. The package's own pages for trials log people in.

import { readFileSync } from "node:fs";
import { Provider } from "oidc-provider";

const { port, tokenS, people } = JSON.parse(readFileSync(process.argv[2], "utf8"));
const issuer = `http://127.0.0.1:${port}`;

const provider = new Provider(issuer, {
  jwks: JSON.parse(readFileSync(process.argv[3], "utf8")),
  clients: [
    {
      client_id: "chat",
      token_endpoint_auth_method: "none",
      id_token_signed_response_alg: "ES256",
      redirect_uris: [`${issuer}/back`],
      grant_types: ["authorization_code"],
    },
  ],
  cookies: { keys: ["a key of the trial"] },
  pkce: { required: () => true },
  ttl: { AccessToken: tokenS },
  features: {
    devInteractions: { enabled: true },
    // A token for a service names it as its audience (RFC 8707), and is a JSON Web Token (RFC 9068).
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: (_, resource) => ({
        scope: "use",
        audience: resource,
        accessTokenFormat: "jwt",
        jwt: { sign: { alg: "ES256" } },
      }),
      useGrantedResource: () => true,
    },
  },
  findAccount: (_, id) => people[id] && { accountId: id, claims: () => ({ sub: id }) },
  extraTokenClaims: (_, token) => ({ groups: people[token.accountId] }),
});
provider.listen(port, "127.0.0.1", () => console.log("ready"));
