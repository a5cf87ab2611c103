package moduletest

import (
	"context"
	"time"

	"gatehouse/module"
	"gatehouse/tool"
)

// SlowBytes is what the SlowJob probe prints: 100 MB.
const SlowBytes = 100_000_000

// slowLine is the length of each line it prints, the newline included.
const slowLine = 100

// SlowLine is the line at an offset of what the SlowJob probe prints, which is
// a multiple of 100.
func SlowLine(offset int64) []byte { return appendSlowLine(nil, offset) }

// rest is what follows the twelve digits of a line.
const rest = " ......................................................................................\n"

func appendSlowLine(b []byte, offset int64) []byte {
	b = append(b, "000000000000"...)
	for i := len(b) - 1; offset > 0; i-- {
		b[i] = byte('0' + offset%10)
		offset /= 10
	}
	return append(b, rest...)
}

// SlowJob is the fifth probe: a tool that takes long and prints 100 MB in
// small pieces, and one that works until it is stopped.
func SlowJob(ctx context.Context, d module.Deps) (module.Module, error) {
	return Fixed(&module.Offer{Tools: []tool.Tool{
		tool.New(tool.Def{
			Name: "slow_print", Effects: tool.Reads, Timeout: 5 * time.Minute,
			Description: "Prints a lot while it works.",
		}, print),
		tool.New(tool.Def{
			Name: "slow_wait", Effects: tool.Reads, Timeout: 5 * time.Minute,
			Description: "Works until it is stopped, where it is told to.",
		}, wait),
	}})(ctx, d)
}

type printIn struct {
	Bytes int64 `json:"bytes" doc:"how much, in lines of 100" default:"100000000" min:"0" max:"1000000000"`
	Piece int64 `json:"piece" doc:"how much at a time" default:"8000" min:"100" max:"1000000"`
}

type printOut struct {
	Printed int64 `json:"printed"`
}

// print tells how far it is after every piece; the host decides what of that
// is worth telling.
func print(ctx context.Context, c *tool.Call, in printIn) (out printOut, err error) {
	w := c.Peer.Output()
	piece := make([]byte, 0, in.Piece+slowLine)
	for at := int64(0); at < in.Bytes; {
		if err := context.Cause(ctx); err != nil {
			return out, err
		}
		piece = piece[:0]
		for ; int64(len(piece)) < in.Piece && at < in.Bytes; at += slowLine {
			piece = appendSlowLine(piece, at)
		}
		n, err := w.Write(piece)
		if err != nil {
			return out, err
		}
		out.Printed += int64(n)
		c.Peer.Progress(float64(out.Printed), float64(in.Bytes), "")
	}
	return out, nil
}

type waitIn struct {
	Forever bool `json:"forever,omitempty" doc:"until it is stopped; otherwise not at all"`
}

func wait(ctx context.Context, c *tool.Call, in waitIn) (struct{}, error) {
	c.Peer.Progress(1, 0, "waiting")
	if !in.Forever {
		return struct{}{}, nil
	}
	<-ctx.Done()
	return struct{}{}, context.Cause(ctx)
}
