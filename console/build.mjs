// Builds the page into the router's package, or into the folder that is given as the argument.
import { copyFile, mkdir } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = fileURLToPath(new URL(".", import.meta.url));
const folder = process.argv[2] ?? `${here}../router/evenkeel_router/page`;

await mkdir(folder, { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: { console: "src/main.tsx" },
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  legalComments: "eof",
  jsx: "automatic",
  jsxImportSource: "preact",
  outdir: folder,
});
for (const name of ["index.html", "icon.svg"]) {
  await copyFile(`${here}src/${name}`, `${folder}/${name}`);
}
