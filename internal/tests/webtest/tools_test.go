package webtest

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/internal/tests/chromium"
)

// A person finds a tool, fills in its form, answers its question in the middle, and sees the answer and the same
// call in other words.
func TestACallWithAQuestionInTheMiddle(t *testing.T) {
	h := start(t, settings(t))
	p := h.visit(chromium.New(t), "#/tools")
	play(p, `
		await story.fill("search", "order");
		await story.press(undefined, "a.tool-row");
		await story.fill("arg-name", "it's tea");
		await story.press("Call");
		await story.text("Which size shall it's tea have?");
		await story.fill("q-size-size", "1");
		await story.press("Send");
		await story.text("accept large it's tea");`)
	got := play(p, `await story.press("curl"); await story.text("Mcp-Name: t_order"); return document.body.innerText`).(string)
	if want := `t_order '\''`; strings.Contains(got, want) || !strings.Contains(got, `it'\''s tea`) {
		t.Errorf("the curl line is not quoted: %s", got)
	}
	// Declining is an answer too.
	play(p, `await story.press("Call"); await story.press("Decline"); await story.text("decline  it's tea");`)
}

func TestProgressAndCancellation(t *testing.T) {
	h := start(t, settings(t))
	p := h.visit(chromium.New(t), "#/tools/t_walk")
	play(p, `
		await story.fill("arg-steps", "400");
		await story.press("Call");
		await story.text("step 3");
		await story.press("Cancel");
		await story.text("The call was cancelled.");
		await story.fill("arg-steps", "2");
		await story.press("Call");
		await story.text("walked");`)
}

func TestResultsAreShownAsWhatTheyAre(t *testing.T) {
	h := start(t, settings(t))
	p := h.visit(chromium.New(t), "#/tools/t_picture")
	size := play(
		p,
		`await story.press("Call"); const i = await story.find("img.shot"); await i.decode(); return i.naturalWidth + "x" + i.naturalHeight`,
	)
	if size != "24x16" {
		t.Errorf("the image has %v", size)
	}
	cells := play(p, `story.go("#/tools/t_cities"); await story.text("Lists cities."); await story.press("Call");
		await story.text("Oslo"); return [...document.querySelectorAll(".result table tr")].map((r) => r.innerText.replace(/\s+/g, " ")).join("; ")`)
	if cells != "city people warm share; Lyon 522,000 yes 0.5; Oslo 709,000 no 0.25" {
		t.Errorf("the table is %q", cells)
	}
}

// What a form sends is what the tool gets, and the address keeps it.
func TestAFormIsALink(t *testing.T) {
	h := start(t, settings(t))
	p := h.visit(chromium.New(t), `#/tools/file_write?args=%7B%22path%22%3A%22a.txt%22%7D`)
	play(p, `
		await story.fill("arg-content", "from a page");
		await story.press("Call");
		await story.text("Succeeded");
		await story.until("arguments in the address", () => decodeURIComponent(location.hash).includes("from+a+page"));`)
	if b, err := os.ReadFile(filepath.Join(h.cfg.Roots.Folders[0], "a.txt")); err != nil || string(b) != "from a page" {
		t.Errorf("the file has %q: %v", b, err)
	}
}

// The keyboard alone leads from any page to a tool.
func TestThePaletteNeedsNoMouse(t *testing.T) {
	h := start(t, settings(t))
	p := h.visit(chromium.New(t), "#/now")
	play(p, `await story.find("h1", "Now")`)
	p.Key("k", 2)
	play(
		p,
		`await story.find("input.palette-input"); await story.until("focus", () => document.activeElement.className === "palette-input")`,
	)
	for key := range strings.SplitSeq("walk", "") {
		p.Key(key, 0)
	}
	play(p, `await story.find("[role=option]", undefined)`)
	p.Key("Enter", 0)
	if got := play(p, `await story.text("Takes steps."); return location.hash`); got != "#/tools/t_walk" {
		t.Errorf("the palette leads to %v", got)
	}
}

// What happens on the host shows by itself, and six tabs need one stream.
func TestSixTabsFollowByOneStream(t *testing.T) {
	cfg := settings(t)
	cfg.Observe.Metrics = true
	h := start(t, cfg)
	b := chromium.New(t)
	var pages []*chromium.Page
	for range 6 {
		pages = append(pages, h.visit(b, "#/now"))
	}
	play(pages[0], `await story.text("Live")`)
	tool := h.visit(
		b,
		`#/tools/process_start?args=%7B%22command%22%3A%22sleep%22%2C%22args%22%3A%5B%22300.125%22%5D%7D`,
	)
	play(tool, `await story.press("Call"); await story.text("Succeeded")`)
	for _, p := range pages {
		play(p, `await story.text("sleep\n"); await story.text("Live")`)
	}
	r, err := http.Get(h.url + "/metrics")
	check(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	check(t, err)
	if !strings.Contains(string(text), "\ngatehouse_streams 1\n") {
		t.Errorf("seven tabs do not hold one stream: %s", text)
	}
}

// An idle page asks for nothing.
func TestAnIdlePageAsksForNothing(t *testing.T) {
	h := start(t, settings(t))
	b := chromium.New(t)
	p := h.visit(b, "#/now")
	play(p, `await story.text("Live"); await new Promise((done) => setTimeout(done, 500))`)
	before := len(b.Requested)
	play(p, `await new Promise((done) => setTimeout(done, 2500))`)
	if more := b.Requested[before:]; len(more) > 0 {
		t.Errorf("an idle page requests %q", more)
	}
}
