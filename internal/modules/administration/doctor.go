package administration

import (
	"context"
	"time"

	"gatehouse/tool"
)

// Finding is the result of one check of the machine.
type Finding struct {
	Grade string `json:"grade" enum:"ok,warn,fail"`
	What  string `json:"what"`
	Fix   string `json:"fix,omitempty" doc:"the command or advice that would help"`
}

// Findings are the results of all checks.
type Findings struct {
	Checks []Finding `json:"checks"`
	Failed int       `json:"failed" doc:"how many failed"`
}

func doctorTools(c Config) []tool.Tool {
	return []tool.Tool{
		operation(c, "check the machine", tool.Def{
			Name: "doctor_run", Title: "Check this machine", Effects: tool.Reads, Timeout: 5 * time.Minute,
			Description: "Checks what this machine has and lacks: settings, folders, limits, clients, " +
				"packages and sandboxes.",
		}, func(ctx context.Context, _ *tool.Call, _ struct{}) (out Findings, err error) {
			if c.Doctor == nil {
				return out, errAbsent
			}
			out.Checks, err = c.Doctor(ctx)
			for _, f := range out.Checks {
				if f.Grade == "fail" {
					out.Failed++
				}
			}
			return out, err
		}),
	}
}
