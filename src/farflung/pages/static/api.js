// The OpenAPI document as a page.

/** A schema in words: its name, or what it is made of. */
function kindWords(schema) {
  if (!schema || !Object.keys(schema).length) return "any";
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices) return choices.map(kindWords).join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(", ");
  if (schema.type === "array") return schema.items ? `list of ${kindWords(schema.items)}` : `[${(schema.prefixItems ?? []).map(kindWords).join(", ")}]`;
  if (schema.type === "object" && schema.additionalProperties) return `object of ${kindWords(schema.additionalProperties)}`;
  return schema.type ?? "any";
}

function structTable(name, schema) {
  const needed = new Set(schema.required ?? []);
  const rows = Object.entries(schema.properties ?? {}).map(([key, kind]) => [key, kindWords(kind), needed.has(key) ? "" : "optional"]);
  const parts = [element("h3", { id: name }, name)];
  if (schema.description) parts.push(element("p", {}, schema.description));
  parts.push(element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": name },
    rows.length ? table("", ["field", "type", ""], rows) : element("p", { class: "faint" }, kindWords(schema))));
  return element("section", {}, ...parts);
}

function wayOf(path, method, way) {
  const answer = Object.entries(way.responses["200"].content).map(([kind, { schema }]) => `${kind}: ${kindWords(schema)}`).join("; ");
  const takes = way.requestBody ? Object.values(way.requestBody.content).map(({ schema }) => kindWords(schema)).join("; ") : "";
  return [`${method.toUpperCase()} ${path}`, way.summary, takes, answer];
}

async function showApi() {
  const described = await (await fetch("/api/v1/openapi.json")).json();
  const ways = Object.entries(described.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, way]) => wayOf(path, method, way)));
  document.getElementById("ways").replaceChildren(
    element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Paths" }, table("", ["path", "what it is for", "takes", "answers with"], ways)),
    element("h2", {}, "Types"),
    ...Object.entries(described.components.schemas).map(([name, schema]) => structTable(name, schema)));
}

showApi();
