package administration

import (
	"context"
	"time"

	"gatehouse/internal/access/alert"
	"gatehouse/internal/access/displaytext"
	"gatehouse/tool"
)

// alertName is the number of bytes of the name of a browser.
const alertName = 60

type alerted struct {
	ID      string    `json:"id"`
	User    string    `json:"user"`
	Name    string    `json:"name,omitempty"`
	Service string    `json:"service" doc:"the host of the push service"`
	Created time.Time `json:"created"`
}

type alertsOut struct {
	Key      string    `json:"key" doc:"the key of this host, with which a browser subscribes, in base64url"`
	Webhook  bool      `json:"webhook" doc:"whether the setting approvals.webhook names one"`
	Browsers []alerted `json:"browsers" doc:"oldest first"`
}

type subscribeIn struct {
	Endpoint string `json:"endpoint" doc:"the URL of the push service" min:"1" max:"1024"`
	Key      string `json:"p256dh" doc:"the public key of the browser, in base64url" min:"1" max:"200"`
	Auth     string `json:"auth" doc:"its authentication secret, in base64url" format:"password" min:"1" max:"100"`
	Name     string `json:"name,omitempty" doc:"of the browser" max:"200"`
}

type alertID struct {
	ID string `json:"id" doc:"from alert_list, such as al_k5x2" min:"1"`
}

type removedAlert struct {
	Removed string `json:"removed"`
}

func shownAlert(s alert.Subscription) alerted {
	return alerted{s.ID, s.User, s.Name, s.Service(), s.Created}
}

func alertTools(c Config) []tool.Tool {
	a := c.Alerts
	return []tool.Tool{
		operation(c, "see who is alerted", tool.Def{
			Name: "alert_list", Title: "List alerts", Effects: tool.Reads,
			Description: "Lists the browsers that are told by Web Push when a call waits for an approval.",
			Help: "They get a link to the page of approvals, and nothing about the call. The setting approvals.webhook " +
				"names an address that is told as well.",
		}, func(ctx context.Context, _ *tool.Call, _ struct{}) (out alertsOut, err error) {
			if a == nil {
				return out, errAbsent
			}
			if out.Key, err = a.Key(ctx); err != nil {
				return out, err
			}
			list, err := a.List()
			out.Webhook, out.Browsers = a.HasWebhook(), []alerted{}
			for _, s := range list {
				out.Browsers = append(out.Browsers, shownAlert(s))
			}
			return out, err
		}),
		operation(c, "subscribe a browser", tool.Def{
			Name: "alert_subscribe", Title: "Alert a browser", Effects: tool.Writes,
			Description: "Subscribes a browser of the person who calls, which is then told when a call waits for an " +
				"approval.",
			Help: "The page of approvals calls it with what its browser returns. Only a person who logged in can. The " +
				"push service has to be at a public https address.",
		}, func(ctx context.Context, call *tool.Call, in subscribeIn) (alerted, error) {
			switch {
			case a == nil:
				return alerted{}, errAbsent
			case !call.Caller.Person || call.Caller.Child:
				return alerted{}, &tool.Refusal{
					Code:    tool.CodeDenied,
					Message: "only a person who logged in to this host can subscribe a browser",
					Next:    "Use the page of approvals.",
				}
			}
			s, err := a.Add(ctx, alert.Subscription{
				User: call.Caller.Principal, Name: displaytext.Cut(displaytext.Line(in.Name), alertName, ""),
				Endpoint: in.Endpoint, Key: in.Key, Auth: in.Auth,
			})
			return shownAlert(s), err
		}),
		operation(c, "unsubscribe a browser", tool.Def{
			Name: "alert_remove", Title: "End the alerts of a browser", Effects: tool.Writes | tool.Destroys,
			Description: "Ends the alerts of a browser.",
		}, func(ctx context.Context, _ *tool.Call, in alertID) (removedAlert, error) {
			if a == nil {
				return removedAlert{}, errAbsent
			}
			return removedAlert{in.ID}, a.Remove(ctx, in.ID)
		}),
		operation(c, "try the alerts", tool.Def{
			Name: "alert_test", Title: "Try the alerts", Effects: tool.Writes,
			Description: "Sends a link to the page of approvals to all browsers that are alerted, and to the webhook.",
		}, func(ctx context.Context, _ *tool.Call, _ struct{}) (alert.Sent, error) {
			if a == nil {
				return alert.Sent{}, errAbsent
			}
			return a.Send(ctx, "/#/approvals"), nil
		}),
	}
}
