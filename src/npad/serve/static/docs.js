// The page of the API, from the server's own description of it.

import { html, table } from "./dom.js";

const HEADER = ["name", "value", "default", "what"];
const main = document.querySelector("main");

/** The type of a parameter and its bounds, in words. */
function valueOf(schema) {
  if (schema.oneOf) return schema.oneOf.map(valueOf).join(", or ");
  if (schema.enum) return schema.enum.join(", ");
  if (schema.type === "array") return `a list of ${valueOf(schema.items)}s`;
  if (schema.format === "binary") return "a file";
  const bounds = [
    ["≥", schema.minimum],
    [">", schema.exclusiveMinimum],
    ["≤", schema.maximum],
    ["<", schema.exclusiveMaximum],
  ];
  const shown = bounds.filter(([, bound]) => bound !== undefined).map((bound) => bound.join(" "));
  return [schema.type, ...shown].join(" ");
}

/** The parameters of an operation as {name, required, schema}, wherever they are sent. */
function parametersOf(operation) {
  if (!operation.requestBody) return operation.parameters ?? [];
  const [{ schema }] = Object.values(operation.requestBody.content);
  return Object.entries(schema.properties).map(([name, own]) => ({
    name,
    required: schema.required.includes(name),
    schema: own,
  }));
}

/** A command that sends a request with what is required, and with texts that have an example. */
function commandOf(path, operation, parameters) {
  const given = parameters
    .filter(({ required, schema }) => required || typeof schema.examples?.[0] === "string")
    .map(({ name, schema }) => [name, schema.examples?.[0] ?? "TEXT"]);
  const address = `${location.origin}${path}`;
  const [kind] = Object.keys(operation.requestBody?.content ?? {});
  if (kind === "multipart/form-data") return `curl ${address} -F file=@recording.wav`;
  if (kind) {
    const body = JSON.stringify(Object.fromEntries(given));
    return `curl ${address} -H 'Content-Type: ${kind}' -d '${body}'`;
  }
  const query = given.map((pair) => pair.join("=")).join("&");
  return query ? `curl -N '${address}?${query}'` : `curl ${address}`;
}

const rowOf = ({ name, required, schema }) => [
  html("code", {}, name),
  valueOf(schema) + (required ? ", required" : ""),
  schema.default === undefined ? "" : JSON.stringify(schema.default),
  schema.description ?? "",
];

const tableOf = (caption, parameters) =>
  html("div", { class: "scrolls", tabindex: "0" }, table(caption, HEADER, parameters.map(rowOf)));

function sectionOf(path, verb, operation) {
  const parameters = parametersOf(operation);
  const first = parameters.findIndex(({ name }) => name === "decoder");
  const own = first < 0 ? parameters : parameters.slice(0, first);
  const options = first < 0 ? [] : parameters.slice(first);
  const title = `${verb.toUpperCase()} ${path}`;
  return html(
    "section",
    { class: "operation", "aria-label": title },
    html("h2", {}, html("code", {}, html("span", { class: "verb" }, verb.toUpperCase()), ` ${path}`)),
    html("p", {}, operation.summary),
    html("pre", { tabindex: "0" }, commandOf(path, operation, parameters)),
    own.length ? tableOf(`Parameters of ${title}`, own) : null,
    options.length
      ? html(
          "details",
          {},
          html("summary", {}, `${options.length} options of decoders`),
          tableOf(`Options of ${title}`, options),
        )
      : null,
  );
}

try {
  const answer = await fetch("openapi.json");
  const { info, paths, "x-limits": limits } = await answer.json();
  const sections = Object.entries(paths).flatMap(([path, operations]) =>
    Object.entries(operations).map(([verb, operation]) => sectionOf(path, verb, operation)),
  );
  const token = "A server with a token wants it as -H 'Authorization: Bearer TOKEN'.";
  main.replaceChildren(
    html("p", { class: "lead" }, `Version ${info.version}. ${info.description} ${token}`),
    ...sections,
    html(
      "section",
      { "aria-label": "Limits" },
      html("h2", {}, "Limits"),
      html("p", {}, "Of this server's requests, as npad serve --limit NAME=N changes them."),
      html(
        "div",
        { class: "scrolls", tabindex: "0" },
        table(
          "Limits",
          ["name", "value"],
          Object.entries(limits).map(([name, value]) => [
            html("code", {}, name),
            value.toLocaleString("en"),
          ]),
        ),
      ),
    ),
  );
} catch {
  main.replaceChildren(html("p", { role: "alert" }, "The server did not answer; reload the page."));
}
