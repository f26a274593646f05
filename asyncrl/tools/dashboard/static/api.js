// Requests to the server this page came from. Addresses are relative, so that the page works wherever it is mounted.

/** JSON at a path below `api/`; parameters that are null or empty are left out. Throws an Error with one sentence. */
export async function get(path, parameters = {}, signal = undefined) {
  let response;
  try {
    response = await fetch(address(path, parameters), {signal, headers: {accept: "application/json"}});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the dashboard's process does not answer; was it stopped?");
  }
  const content = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(content.error || `the dashboard answered ${response.status}`);
  return content;
}

export function address(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value != null && value !== "") query.set(name, value);
  }
  const text = query.toString();
  return `api/${path}${text ? `?${text}` : ""}`;
}

/** Call `changed(runs)` for every change; `connected(true or false)` as the connection comes and goes. */
export function follow(changed, connected) {
  const source = new EventSource("changes");
  source.onmessage = (message) => {
    connected(true);
    changed(JSON.parse(message.data).runs);
  };
  source.onerror = () => connected(false);
  return () => source.close();
}
