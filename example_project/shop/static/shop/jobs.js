"use strict";

// Ask every second how the jobs on this page stand, until all of them have ended.
(() => {
  const rows = new Map();
  document.querySelectorAll("[data-job]").forEach((row) => rows.set(row.dataset.job, row));
  const address = document.body.dataset.states;

  const show = (row, job) => {
    const state = row.querySelector(".state");
    state.textContent = job.state;
    state.dataset.state = job.state;
    row.querySelector(".attempts").textContent = job.attempts || "";
    row.querySelector(".note").textContent = job.note;
  };

  const ask = async () => {
    const ids = [...rows.keys()].map((id) => "id=" + encodeURIComponent(id)).join("&");
    try {
      const answer = await fetch(address + "?" + ids);
      if (answer.ok) {
        for (const [id, job] of Object.entries(await answer.json())) {
          show(rows.get(id), job);
          if (job.ended) rows.delete(id);
        }
      }
    } catch (error) {
      console.warn("The shop does not answer.", error);
    }
    if (rows.size) setTimeout(ask, 1000);
  };

  if (rows.size) ask();
})();
