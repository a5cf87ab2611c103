// Package resources is the module with the resources of every view: the help of each
// tool, and outputs that were too long for a result.
package resources

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"gatehouse/internal/dispatch/spool"
	"gatehouse/module"
	"gatehouse/tool"
)

// URI templates of the resources.
const (
	SpoolTemplate = "gatehouse:///spool/{handle}{?offset}"
	HelpTemplate  = "gatehouse:///help/{tool}"
)

// pageBytes is the number of bytes of an output in one read.
const pageBytes = 32_000

// Help finds the definition of a tool by its name in a caller's view, and lists the
// names.
type Help struct {
	Find  func(ctx context.Context, who tool.Caller, name string) (*tool.Def, bool)
	Names func(ctx context.Context, who tool.Caller) []string
}

type builtin struct {
	spool *spool.Spool
	help  Help
}

// New returns what makes the module with a spool and the help of tools.
func New(sp *spool.Spool, help Help) module.New {
	return func(context.Context, module.Deps) (module.Module, error) {
		return &builtin{sp, help}, nil
	}
}

func (h *builtin) Close(context.Context) error { return nil }

func (h *builtin) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &module.Offer{Templates: []module.Resource{
		{
			URI: HelpTemplate, Name: "help", Title: "Help for one tool", MIME: "text/markdown",
			Description: "The full description of a tool, its arguments and its result.",
			Read:        h.readHelp, Complete: h.completeHelp,
		},
		{
			URI: SpoolTemplate, Name: "spool", Title: "Long output", MIME: "text/plain",
			Description: "Output that was too long for its result. To read on, use the offset at the end of the text.",
			Read:        h.readSpool,
		},
	}}, nil
}

// readSpool reads a page of an output. The text ends with the offset of the next
// page.
func (h *builtin) readSpool(_ context.Context, c *tool.Call) (tool.Result, error) {
	var in struct{ Handle, Offset string }
	if err := json.Unmarshal(c.Args, &in); err != nil {
		return tool.Result{}, err
	}
	offset, err := strconv.ParseInt(in.Offset, 10, 64)
	if err != nil && in.Offset != "" {
		return tool.Result{}, tool.Refuse(tool.CodeInvalidArguments, "offset: expected a number of bytes, got %q",
			in.Offset)
	}
	chunk, err := h.spool.Read(c.Caller.Owner, in.Handle, offset, pageBytes)
	if errors.Is(err, spool.ErrNotFound) {
		return tool.Result{}, tool.Refuse(tool.CodeNotFound,
			"there is no such output: outputs are kept for a limited time")
	}
	if err != nil {
		return tool.Result{}, err
	}
	return tool.Result{
		Content: []tool.Content{page(c.Name, &chunk)},
		Meta: map[string]json.RawMessage{
			"gatehouse/next": jsonNumber(chunk.Next), "gatehouse/size": jsonNumber(chunk.Size),
			"gatehouse/done": json.RawMessage(strconv.FormatBool(chunk.Done)),
		},
	}, nil
}

func page(uri string, chunk *spool.Chunk) tool.Content {
	if !utf8.Valid(chunk.Data) {
		return tool.BlobResource(uri, "application/octet-stream", chunk.Data)
	}
	text := string(chunk.Data)
	if !chunk.Done {
		text = strings.TrimSuffix(text, "\n") + "\n[" + strconv.FormatInt(chunk.Next, 10) + " of " +
			strconv.FormatInt(
				chunk.Size, 10,
			) + " bytes read; to read on, use ?offset=" + strconv.FormatInt(chunk.Next, 10) + "]"
	}
	return tool.TextResource(uri, chunk.MIME, text)
}

func jsonNumber(n int64) json.RawMessage { return json.RawMessage(strconv.FormatInt(n, 10)) }

// readHelp returns the definition of a tool as text.
func (h *builtin) readHelp(ctx context.Context, c *tool.Call) (tool.Result, error) {
	var in struct{ Tool string }
	if err := json.Unmarshal(c.Args, &in); err != nil {
		return tool.Result{}, err
	}
	d, ok := h.help.Find(ctx, c.Caller, in.Tool)
	if !ok {
		return tool.Result{}, tool.Refuse(tool.CodeNotFound, "this context has no tool %s", in.Tool)
	}
	text := "# " + in.Tool + "\n\n" + d.Description + "\n"
	if d.Help != "" {
		text += "\n" + d.Help + "\n"
	}
	return tool.Result{Content: []tool.Content{tool.TextResource(c.Name, "text/markdown", text)}}, nil
}

func (h *builtin) completeHelp(ctx context.Context, c *tool.Call) (tool.Result, error) {
	var in module.Completing
	if err := json.Unmarshal(c.Args, &in); err != nil {
		return tool.Result{}, err
	}
	names := slices.DeleteFunc(h.help.Names(ctx, c.Caller), func(n string) bool {
		return !strings.HasPrefix(n, in.Value)
	})
	return tool.Result{Completion: &tool.Completion{Values: names, Total: len(names)}}, nil
}
