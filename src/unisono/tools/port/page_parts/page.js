// Shows the places of a file that have a decision of a kind that is chosen; with all, every place.
const boxes = [...document.querySelectorAll("#filter input")];
function show() {
  const chosen = new Set(boxes.filter(box => box.checked).map(box => box.value));
  for (const hunk of document.querySelectorAll(".hunk")) {
    const kinds = [...hunk.querySelectorAll(".decision")].map(each => each.dataset.verdict);
    hunk.hidden = kinds.length ? !kinds.some(kind => chosen.has(kind)) : chosen.size < boxes.length;
  }
  for (const file of document.querySelectorAll(".file"))
    file.hidden = !file.querySelector(".hunk:not([hidden])");
}
for (const box of boxes) box.addEventListener("change", show);
show(); // a browser keeps what was chosen when the page is loaded again
