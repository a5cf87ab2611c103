package webview

import (
	"slices"
	"time"

	"gatehouse/tool"
)

const (
	looks = tool.Reads | tool.OpenWorld
	acts  = tool.Reads | tool.Writes | tool.Destroys | tool.OpenWorld
)

const snapshotHelp = `A snapshot is the page as lines. What can be acted on has a number, its ref: [e12 button "Save"].

- Give a ref as target of webview_click, webview_type and the others. Other targets: button "Save" (role and name),
  text=Save, css=#save, or 120,300 (pixels of the viewport).
- Lines of the viewport come first; what does not fit is left out as "… 40 lines: cursor=81". Call again with that
  cursor to go on.
- Long tables and lists show their first rows. webview_query with their ref, page and contains gives the rest.
- mode interactive leaves out plain text; text and markdown leave out refs. within shows one element.
- diff shows only what changed since the page was last shown. Actions take snapshot=diff.
- A ref whose element was replaced is found again by its role and name if exactly one element has them.`

// tools returns the tools of the module.
func (m *manager) tools() []tool.Tool { return slices.Concat(m.pageTools(), m.browserTools()) }

// pageTools are the tools that open, read and use pages.
func (m *manager) pageTools() []tool.Tool {
	return []tool.Tool{
		tool.New(tool.Def{
			Name: "webview_connect", Title: "Start or attach a browser", Effects: acts, Timeout: time.Minute,
			Description: "Starts a browser of your own, or attaches to one at a debug address. " +
				"Not needed before webview_navigate.",
		}, m.connect),
		tool.New(tool.Def{
			Name: "webview_disconnect", Title: "Close a browser", Effects: tool.Writes | tool.Idempotent,
			Description: "Ends a browser and forgets its pages, cookies and downloads.",
		}, m.disconnect),
		tool.New(tool.Def{
			Name: "webview_navigate", Title: "Open a page", Effects: acts, Timeout: time.Minute, Budget: -1,
			Description: "Opens an address, or goes back, forward or reloads. snapshot=full adds the page.",
		}, m.navigate),
		tool.New(tool.Def{
			Name: "webview_snapshot", Title: "Read a page", Effects: looks, Budget: -1,
			Description: "Returns the page as text with refs of what can be acted on, the viewport first, " +
				"in max_tokens.",
			Help: snapshotHelp,
		}, m.snapshot),
		tool.New(tool.Def{
			Name: "webview_find", Title: "Search a page", Effects: looks,
			Description: "Finds lines of the whole page that contain a text or match a regular expression, " +
				"with their refs.",
		}, m.findLines),
		tool.New(tool.Def{
			Name: "webview_click", Title: "Click", Effects: acts, Timeout: time.Minute, Budget: -1,
			Description: "Clicks an element when it is visible, still and not covered.",
		}, m.click),
		tool.New(tool.Def{
			Name: "webview_type", Title: "Type", Effects: acts, Timeout: time.Minute, Budget: -1,
			Description: "Types text, or a stored secret, into a field with key events. It is appended unless clear is set.",
		}, m.typeText),
		tool.New(tool.Def{
			Name: "webview_fill", Title: "Fill fields", Effects: acts, Timeout: time.Minute, Budget: -1,
			Description: "Sets several fields of a form in one call: text, boxes (true or false) and lists of options.",
		}, m.fill),
		tool.New(tool.Def{
			Name: "webview_act", Title: "Press, hover, select, scroll, drag", Effects: acts, Timeout: time.Minute,
			Budget:      -1,
			Description: "Presses a key, hovers, selects options, checks a box, scrolls or drags.",
		}, m.actOn),
		tool.New(tool.Def{
			Name: "webview_query", Title: "Query elements", Effects: looks, Budget: -1,
			Description: "Describes the elements that match, or gives the rows of a table or list by page and contains.",
		}, m.query),
		tool.New(tool.Def{
			Name: "webview_eval", Title: "Run a script", Effects: acts, Timeout: time.Minute,
			Description: "Runs JavaScript in the page and returns its value. Promises are awaited; " +
				"an element is returned as its ref.",
		}, m.eval),
		tool.New(tool.Def{
			Name: "webview_wait", Title: "Wait for a page", Effects: looks, Timeout: time.Minute,
			Description: "Waits until an element or text is there or gone, an address is open, " +
				"a script is true or the network is idle.",
		}, m.waitFor),
		m.screenshotTool(tool.Def{
			Name: "webview_screenshot", Title: "Take a picture", Effects: looks, Budget: -1,
			Description: "Returns a picture of the viewport, an element or the whole page.",
		}),
	}
}

// browserTools are the tools of what is around pages: console, network, tabs, files and logins.
func (m *manager) browserTools() []tool.Tool {
	return []tool.Tool{
		tool.New(tool.Def{
			Name: "webview_console", Title: "Read the console", Effects: looks,
			Description: "Returns messages and errors of the page's console after a cursor.",
		}, m.console),
		tool.New(tool.Def{
			Name: "webview_network", Title: "Read the network log", Effects: looks,
			Description: "Lists the page's requests after a cursor, returns one answer's body, " +
				"or lists what the address policy decided.",
		}, m.networkLog),
		tool.New(tool.Def{
			Name: "webview_tabs", Title: "Manage tabs", Effects: acts,
			Description: "Lists your browsers and tabs, and opens, selects or closes a tab.",
		}, m.tabs),
		tool.New(tool.Def{
			Name: "webview_dialog", Title: "Answer a dialog", Effects: acts, Budget: -1,
			Description: "Accepts or dismisses an alert, confirm, prompt or beforeunload dialog.",
		}, m.dialog),
		tool.New(tool.Def{
			Name: "webview_upload", Title: "Upload files", Effects: acts, Budget: -1,
			Description: "Gives files of your folders to a file field, or to the chooser that the page has opened.",
		}, m.upload),
		tool.New(tool.Def{
			Name: "webview_download", Title: "Save a download", Effects: tool.Reads | tool.Writes, Timeout: time.Minute,
			Description: "Lists what pages have downloaded, and saves one to a path in your folders.",
		}, m.download),
		tool.New(tool.Def{
			Name: "webview_storage", Title: "Save or restore logins", Effects: acts,
			Description: "Saves the browser's cookies and the page's local storage to a file, restores or clears them.",
		}, m.storage),
		tool.New(tool.Def{
			Name: "webview_pdf", Title: "Print to PDF", Effects: tool.Reads | tool.Writes,
			Description: "Prints the page to a PDF file in your folders.",
		}, m.pdf),
		tool.New(tool.Def{
			Name: "webview_render", Title: "Show HTML", Effects: acts, Budget: -1,
			Description: "Shows HTML in a tab of its own under a name, and returns it as a snapshot.",
		}, m.render),
		tool.New(tool.Def{
			Name: "webview_update", Title: "Change shown HTML", Effects: acts, Budget: -1,
			Description: "Replaces what webview_render shows under a name, or one element of it, " +
				"and returns what changed.",
		}, m.update),
	}
}
