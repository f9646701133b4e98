"use strict";
// The button of the page that another site led to. The code is in the address alone, and leaves it before it is sent.

const code = new URLSearchParams(window.location.search).get("code") ?? "";
window.history.replaceState(null, "", "/login");

document.getElementById("confirm").addEventListener("submit", async (event) => {
  event.preventDefault();
  const answer = await fetch("/login", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ code }),
  });
  if (answer.ok) window.location.replace("/");
  else document.getElementById("login-error").textContent = (await answer.json()).detail;
});
