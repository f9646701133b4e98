"use strict";
// The board: what runs where, who waits for what. Everything that came from others is put in as text, never as HTML.

const $ = (id) => document.getElementById(id);
let source = null;
let timer = null;
let shown = null;
let tail = null;  // of the log that is open

function make(tag, text, className) {
  const node = document.createElement(tag);
  if (text !== undefined && text !== null) node.textContent = String(text);
  if (className) node.className = className;
  return node;
}

function row(...cells) {
  const line = document.createElement("tr");
  for (const cell of cells) {
    const td = document.createElement("td");
    td.append(cell instanceof Node ? cell : document.createTextNode(cell ?? ""));
    line.append(td);
  }
  return line;
}

async function call(path, options) {
  const answer = await fetch(path, options);
  if (answer.status === 401) { askForToken(); throw new Error("not logged in"); }
  const body = await answer.json();
  if (!answer.ok) throw new Error(typeof body.detail === "string" ? body.detail : JSON.stringify(body.detail));
  return body;
}

function askForToken() {
  $("login").hidden = false;
  $("board").hidden = true;
  $("summary").textContent = "log in with your token, or open a login link";
  if (source) { source.close(); source = null; }
}

function ago(seconds) {
  if (!seconds) return "";
  const past = Math.max(0, Date.now() / 1000 - seconds);
  if (past < 90) return `${Math.round(past)} s`;
  if (past < 5400) return `${Math.round(past / 60)} min`;
  return past < 172800 ? `${(past / 3600).toFixed(1)} h` : `${Math.round(past / 86400)} d`;
}

const word = status => status === "ready" ? "held" : status; // as the commands say it

function opener(run, withId) {
  const button = make("button", run.name || run.run_id || run.id, "link");
  button.addEventListener("click", () => show(run.id));
  if (!withId) return button;
  const both = make("div");
  both.append(button, make("small", run.id, "id"));
  return both;
}

function canceller(run) {
  const button = make("button", "cancel");
  button.setAttribute("aria-label", `cancel ${run.name || run.id}`);
  button.addEventListener("click", async () => {
    if (!window.confirm(`Cancel ${run.name || run.id}?`)) return;
    try { await call(`/runs/${run.id}/stop`, { method: "POST" }); } catch (error) { window.alert(error.message); }
    refresh();
  });
  return button;
}

function drawGpus(cluster, jobs) {
  const byId = new Map(jobs.map((job) => [job.id, job]));
  $("gpus").replaceChildren(...cluster.nodes.map((node) => {
    const box = make("div", null, "node");
    box.append(make("h3", `${node.node_id}${node.simulated ? " (simulated)" : ""}`));
    const cells = make("div", null, "cells");
    for (const gpu of node.gpus) {
      const job = byId.get(gpu.allocated_to);
      const out = gpu.status === "offline" || gpu.status === "error";
      const cell = make("div", null, `gpu ${job ? "busy" : ""} ${out ? "out" : ""}`);
      cell.append(make("small", `GPU ${gpu.gpu_id}`));
      cell.append(job ? opener({ id: job.id, name: `${job.user}: ${job.name || job.run_id}` }) : make("span", out ? gpu.status : "free"));
      cells.append(cell);
    }
    box.append(cells);
    return box;
  }));
}

async function refresh() {
  timer = null;
  try {
    const [status, queue, runs] = await Promise.all([call("/gpu/status"), call("/queue"), call("/runs?limit=50")]);
    const cluster = status.cluster_status;
    $("login").hidden = true;
    $("board").hidden = false;
    const banner = [];
    if (queue.paused) banner.push(`Scheduling is paused${queue.pause_why ? `: ${queue.pause_why}` : ""}. ${queue.resumes_itself ? "" : "Nothing is started until an admin resumes it."}`);
    if (cluster.simulated) banner.push("The GPUs are simulated: jobs are real processes, GPU numbers are not.");
    $("banner").hidden = !banner.length;
    $("banner").textContent = banner.join(" ");
    $("summary").textContent = `${cluster.allocated_gpus} of ${cluster.total_gpus} GPUs held · ${queue.running.length} running · ${queue.queued.length} waiting`;
    drawGpus(cluster, queue.running);
    $("waiting-count").textContent = queue.queued.length ? `(${queue.queued.length})` : "";
    $("waiting").replaceChildren(...queue.queued.slice(0, 100).map((job, index) =>
      row(index + 1, opener({ id: job.id, name: job.name || job.run_id }, true), job.user, job.gpu_count, job.priority, ago(job.submitted_at), canceller(job))));
    $("runs").replaceChildren(...runs.map((run) => {
      const active = run.status === "running" || run.status === "launching";
      const line = row(opener(run, true), run.user, make("span", word(run.status), run.status), (run.gpus || []).join(" "),
        active ? ago(run.started_at || run.launched_at) : run.ended_at ? `${ago(run.ended_at)} ago` : "", active ? canceller(run) : "");
      return line;
    }));
    if (!source) watch();
    if (shown) await fill(shown);
  } catch (error) {
    if (error.message !== "not logged in") $("summary").textContent = `the server does not answer: ${error.message}`;
    if (!source && $("login").hidden) timer = window.setTimeout(refresh, 3000);
  }
}

function soon() {
  if (timer === null) timer = window.setTimeout(refresh, 300);
}

function watch() {
  const mine = source = new EventSource("/events");
  source.onmessage = soon;
  source.onopen = soon;
  source.onerror = () => {
    $("summary").textContent = "the connection is gone; trying again …";
    if (mine.readyState === EventSource.CLOSED && source === mine) {  // refused: a browser comes back only to a line that broke
      source = null;
      if (timer === null) timer = window.setTimeout(refresh, 3000);
    }
  };
}

async function fill(id) {
  const run = await call(`/runs/${id}`);
  $("detail-title").textContent = run.name;
  const facts = [["id", run.id], ["status", word(run.status)], ["who", run.user], ["command", run.command], ["directory", run.workdir],
    ["GPUs", (run.gpus || []).join(" ") || run.gpu_count], ["exit code", run.exit_code], ["error", run.error]];
  $("facts").replaceChildren(...facts.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .flatMap(([name, value]) => [make("dt", name), make("dd", value)]));
  const reasons = (run.reasons || []).map((reason) => make("li", reason.text || reason));
  $("why").hidden = run.status !== "queued" && run.status !== "ready";
  $("reasons").replaceChildren(...(reasons.length ? reasons : [make("li", run.status === "ready" ? "it is held until somebody starts it" : "it starts at once")]));
}

// Stays at the newest line, unless somebody scrolled up to read.
function write(text, anew) {
  const log = $("log");
  const atEnd = anew || log.scrollTop + log.clientHeight >= log.scrollHeight - 20;
  const whole = anew ? text : log.textContent + text;
  log.textContent = whole.length > 200000 ? whole.slice(-150000) : whole;
  if (atEnd) log.scrollTop = log.scrollHeight;
}

async function follow(id) {
  const log = await call(`/runs/${id}/logs?offset=-20000&limit=20000`);
  if (shown !== id) return;
  write(log.content || log.note || "", true);
  if (log.note) return;
  const mine = tail = new EventSource(`/runs/${id}/logs/stream`);
  tail.onmessage = (event) => {
    const said = JSON.parse(event.data);
    if (said.content) write(said.content, said.type === "initial");
    if (said.type === "done") { mine.close(); if (!$("log").textContent) write("(it wrote nothing)", true); }
  };
}

async function show(id) {
  shown = id;
  $("log").textContent = "";
  try { await fill(id); } catch (error) { shown = null; window.alert(error.message); return; }
  $("detail").showModal();
  try { await follow(id); } catch (error) { write(error.message, true); }
}

$("detail").addEventListener("close", () => {
  shown = null;
  if (tail) { tail.close(); tail = null; }
});
$("logout").addEventListener("click", async () => {
  await fetch("/logout", { method: "POST" });
  window.location.reload();
});
$("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  const answer = await fetch("/login", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ code: $("code").value }),
  });
  $("code").value = "";
  $("login-error").textContent = answer.ok ? "" : (await answer.json()).detail;
  if (answer.ok) { refresh(); whoami(); }
});

async function whoami() {
  try {
    const me = await call("/whoami");
    $("me").textContent = `${me.name} (${me.role})`;
    $("logout").hidden = me.known_by !== "cookie";
  } catch { /* the login form is shown */ }
}

refresh();
whoami();
